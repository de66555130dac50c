"""A package that is missing is named in one line, with what to install."""

import sys

import pytest

from easgd.cli import main
from easgd.errors import SettingError
from easgd.extras import require


def without(monkeypatch, *packages):
    """Make packages look uninstalled."""
    for name in [n for n in sys.modules if n.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


def test_the_line_names_the_package_as_pip_does(monkeypatch):
    without(monkeypatch, "sklearn")
    with pytest.raises(SettingError, match=r"the data set digits needs scikit-learn.*pip install 'easgd\[data\]'"):
        require("sklearn.datasets", "data", "the data set digits")


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("data make digits", "sklearn", "data"),
        ("data show digits", "PIL", "data"),
        ("data make folder photos", "PIL", "data"),
        ("theory fig1", "matplotlib", "report"),
        ("compare --methods easgd --engine simulate", "plotly", "report"),
        ("paper fig1 --scale smoke", "matplotlib", "report"),
    ],
)
def test_a_command_without_its_package_says_what_to_install(line, package, extra, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "data"))
    main(["data", "make", "digits"])
    capsys.readouterr()
    without(monkeypatch, package)
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"pip install 'easgd[{extra}]'" in said
