"""A user's own method: the example of docs/methods.md through `easgd train` on every engine, and the registry."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import easgd
from easgd.methods import registry

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "methods.md").read_text()
EXAMPLE = next(block for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL) if "class Damped" in block)
SMALL = ["--network", "digits-mlp", "--train-subset", "50", "--steps", "12", "--workers", "2", "--plain"]


@pytest.fixture
def folder(tmp_path, shared):
    (tmp_path / "mymethods.py").write_text(EXAMPLE)
    return tmp_path


def run(folder, *arguments, **environment):
    # -P, as the installed command does: the working directory is not on Python's path.
    command = [sys.executable, "-P", "-m", "easgd", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=200, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_is_short():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 22


@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    "engine",
    ["simulate", pytest.param("local", marks=pytest.mark.heavy), pytest.param("ray", marks=pytest.mark.heavy)],
)
def test_the_example_trains_on_every_engine(engine, folder):
    if engine == "ray":
        pytest.importorskip("ray")
    method = ["--method", "mymethods:Damped", "--set", "damping=0.25"]
    run(folder, "train", *method, "--engine", engine, *SMALL, "--out", "a")
    config = json.loads((folder / "a" / "config.json").read_text())
    assert (config["method"], config["settings"], config["lr"]) == ("mymethods:Damped", {"damping": 0.25}, 0.2)
    assert json.loads((folder / "a" / "status.json").read_text())["state"] == "finished"
    lines = (folder / "a" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["version"] > 0
    assert (folder / "a" / "model.safetensors").exists()


@pytest.fixture
def here(folder, monkeypatch):
    """The command in this process, with the user's folder as working directory."""
    from easgd.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mymethods", raising=False)
    return lambda *arguments: main(["train", *arguments])


def test_undamped_it_is_downpour(folder, here):
    same = ["--engine", "simulate", "--lr", "0.1", *SMALL]
    assert here("--method", "mymethods:Damped", "--set", "damping=1", *same, "--out", "own") == 0
    assert here("--method", "downpour", *same, "--out", "known") == 0
    own, known = ((folder / name / "evaluations.jsonl").read_text() for name in ("own", "known"))
    assert own == known


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_it_is_compared_and_reported(folder):
    said = run(
        folder, "compare", "--methods", "mymethods:Damped,downpour", "--set", "damping=0.5,0.25",
        "--engine", "simulate", *SMALL, "--out", "both", "--jobs", "1",
    )  # fmt: skip
    names = {path.parent.name for path in (folder / "both").glob("*/config.json")}
    assert names == {"damped-p2-t1-lr0.2-s0", "damped-p2-t1-lr0.2-s0-2", "downpour-p2-t1-lr0.1-s0"}
    assert "Damped p=2 τ=1 settings={'damping': 0.25}" in said
    assert "DOWNPOUR p=2 τ=1" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "mymethods:Dampd"], "has no attribute 'Dampd'"),
        (["--method", "nowhere:Damped"], "No module named 'nowhere'"),
        (["--method", "json:loads"], "no subclass of easgd.Method"),
        (["--method", "mymethods:Damped", "--set", "damping=much"], "damping = 'much': it must be a number"),
        (["--method", "mymethods:Damped", "--set", "dampng=1"], "Damped has no dampng; it takes period, damping"),
        (["--method", "mymethods:Damped", "--set", "period=1"], "write --period"),
        (["--set", "damping"], "it must be NAME=VALUE"),
    ],
)
def test_mistakes_are_one_line(arguments, words, here, capsys):
    assert here(*arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


@pytest.mark.heavy
def test_an_entry_point_is_a_name_like_any_other(folder):
    package = folder / "mymethods-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mymethods\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[easgd.methods]\ndamped = mymethods:Damped\n")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    assert "asyncdiloco, damped, diloco, downpour" in " ".join(run(folder, "train", "--help", PYTHONPATH=path).split())
    run(folder, "train", "--method", "damped", "--engine", "simulate", *SMALL, "--out", "a", PYTHONPATH=path)
    assert json.loads((folder / "a" / "config.json").read_text())["method"] == "damped"


# the registry ----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.delitem(sys.modules, "mymethods", raising=False)
    import mymethods

    return easgd.register(mymethods.Damped)


def test_a_registered_method_is_recorded_so_that_other_processes_find_it(own):
    assert "damped" in registry.names()
    config = easgd.Config(method="damped", settings={"damping": 0.1}).resolved()
    assert config.method == "mymethods:Damped"
    assert config.make_method() == own(damping=0.1)
    assert config.label == "Damped p=4 τ=1"
    assert easgd.Config.from_dict(config.as_dict()) == config


def test_a_method_of_the_script_itself_is_for_the_simulator(own):
    own.__module__ = "__main__"
    with pytest.raises(easgd.SettingError, match="move the class into a module"):
        easgd.Config(method="damped").resolved()
    assert easgd.Config(method="damped", engine="simulate").resolved().method == "damped"


def test_a_name_is_registered_once(own):
    easgd.register(own)  # the same class again
    with pytest.raises(easgd.SettingError, match="key = damped: another method"):
        easgd.register(type("Other", (easgd.Method,), {"key": "damped"}))
    with pytest.raises(easgd.SettingError, match="key = easgd: another method"):
        easgd.register(type("EASGD", (easgd.EASGD,), {}))


def test_what_is_a_methods_own_is_not_inherited():
    variant = type("Variant", (easgd.ADownpour,), {})
    assert (variant.key, variant.name, variant.shares_path_with, variant.colour) == ("variant", "Variant", None, None)
    assert variant.rates == easgd.Downpour.rates


def test_built_in_methods_are_the_files_of_the_package():
    for key in registry.built_in():
        method = registry.get(key)
        assert method.key == key
        assert method.__module__ == f"easgd.methods.{key}"
        assert getattr(easgd, method.__name__) is method
        assert method.paper
    orders = [registry.get(key).order for key in registry.built_in()]
    assert len(set(orders)) == len(orders)
    shared = {registry.get(key).shares_path_with for key in registry.built_in()} - {None}
    assert shared <= set(registry.built_in())


def test_names_are_known_without_torch():
    code = "import sys; from easgd.methods import registry; print(len(registry.names()) > 10, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_the_documentation_has_the_table():
    assert registry.table() in (ROOT / "docs" / "methods.md").read_text()


def test_star_import_leaves_the_names_of_torch_alone():
    namespace: dict[str, object] = {}
    exec("from torch.optim import *; from easgd import *", namespace)
    import torch

    assert namespace["SGD"] is torch.optim.SGD
    assert namespace["ASGD"] is torch.optim.ASGD
    assert easgd.SGD().sequential
    assert easgd.ASGD().keeps_average
