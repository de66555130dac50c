"""`easgd data`: each command once, and bad input as one line with exit code 2."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from easgd.cli import main
from easgd.cli.data import COMMANDS
from easgd.cli.parsing import CommandGroup
from easgd.data import load


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_make_list_verify_show(capsys, tmp_path):
    assert main(["data", "list"]) == 0
    assert "easgd data make digits" in capsys.readouterr().out
    assert main(["data", "make", "digits"]) == 0
    assert (
        main(["data", "make", "synthetic", "--count", "50", "--test-count", "9", "--size", "7", "--channels", "1"]) == 0
    )
    capsys.readouterr()
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["digits-test", "364"], ["digits-train", "1433"], ["synthetic-test", "9"], ["synthetic-train", "50"]
    ]  # fmt: skip
    assert main(["data", "verify"]) == 0
    assert capsys.readouterr().out.count("every byte as written") == 4
    assert main(["data", "verify", "digits", "synthetic-test"]) == 0
    assert capsys.readouterr().out.count("every byte as written") == 3
    assert main(["data", "show", "digits", "--columns", "5"]) == 0
    with Image.open(tmp_path / "digits-train.png") as sheet:
        pixels = np.asarray(sheet)
    assert pixels.std() > 20
    # the first zero of the file, enlarged eight times, is on the sheet
    first = load("digits").image(int(np.flatnonzero(load("digits").labels == 0)[0]))[:, :, 0].repeat(8, 0).repeat(8, 1)
    windows = np.lib.stride_tricks.sliding_window_view(pixels[28 : 28 + 64, :, 0], (64, 64))
    assert any(np.array_equal(windows[0, x], first) for x in range(windows.shape[1]))


def test_make_folder_names_what_it_skipped(capsys, tmp_path):
    (tmp_path / "p" / "train" / "a").mkdir(parents=True)
    Image.new("L", (9, 8), 5).save(tmp_path / "p" / "train" / "a" / "x.png")
    (tmp_path / "p" / "train" / "a" / "y.jpg").write_text("text")
    assert main(["data", "make", "folder", "p", "--size", "8", "--square"]) == 0
    out = capsys.readouterr().out
    assert "y.jpg: cannot identify image file" in out
    assert "skipped 1 of 2 files" in out
    assert main(["data", "show", "p", "--crop", "6", "--flip", "--out", "sheets/p.png"]) == 0
    assert (tmp_path / "sheets" / "p.png").exists()


def test_a_damaged_file_is_named(capsys, home):
    main(["data", "make", "digits"])
    path = home / "digits-test.easgd"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    assert main(["data", "verify"]) == 2
    error = capsys.readouterr().err
    assert "digits-test.easgd" in error
    assert "checksum" in error
    path.write_bytes(data[:3000])
    capsys.readouterr()
    assert main(["data", "list"]) == 0
    assert "of 28848 bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "mnst"], "unknown data make command 'mnst'"),
        (["make", "mnist"], "unknown data make command 'mnist'"),
        (["make", "folder"], "path = nothing"),
        (["make", "folder", "nowhere"], "no such folder"),
        (["make", "folder", "nowhere", "--bad", "maybe"], "unknown bad 'maybe'"),
        (["make", "cifar10", "--folder", "nowhere"], "neither data_batch_1.bin nor data_batch_1"),
        (["make", "synthetic", "--count", "0"], "count = 0"),
        (["make", "synthetic", "--count", "many"], "--count = 'many': it must be a whole number"),
        (["make", "synthetic", "--name", "../x"], "a name has no folders in it"),
        (["show", "mnist"], "not found"),
        (["show", "digits", "--crop", "9"], "sides of 8 pixels"),
        (["show", "digits", "--columns", "0"], "columns = 0"),
        (["verify", "mnist-train"], "mnist: not found"),
        (["verify", "nowhere.easgd"], "nowhere"),
        (["dance"], "unknown data command 'dance'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, said):
    assert main(["data", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("easgd: error: ")


def test_a_read_only_home_is_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "file" / "home"))
    assert main(["data", "make", "synthetic", "--count", "5"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def commands(group):
    for each in group.commands.values():
        yield from commands(each) if isinstance(each, CommandGroup) else [each]


@pytest.mark.parametrize("command", list(commands(COMMANDS)), ids=lambda command: command.name)
def test_every_command_has_help_with_an_example_that_parses(capsys, command):
    assert main([*command.name.split(), "--help"]) == 0
    assert f"example: easgd {command.examples[0]}" in capsys.readouterr().out
    command.parse(command.examples[0].removeprefix(command.name).split())


def test_groups_have_help_with_an_example(capsys):
    assert main(["data", "make", "--help"]) == 0
    assert "example: easgd data make folder photos" in capsys.readouterr().out


def test_help_comes_without_heavy_imports():
    heavy = "[m for m in ('torch', 'numpy', 'PIL', 'rich') if m in sys.modules]"
    code = f"import sys; from easgd.cli import main; main(['data', '--help']); print({heavy})"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert out.splitlines()[-1] == "[]"
