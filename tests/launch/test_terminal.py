"""What a worker finds at its standard input, from a launcher with a real terminal and from one without."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator

import pytest

import easgd
from easgd.launch.terminal import terminal_setting

LINES, COLUMNS = 33, 108
SIZE = (LINES, COLUMNS - 8)  # the launcher writes "[0] " before every line

# As kuangliu/pytorch-cifar does at its first import, and as progress bars do.
ASK = """
import shutil
print("stty", os.popen("stty size", "r").read().strip())
print("shutil", shutil.get_terminal_size((1, 1)).columns)
try:
    print("os", os.get_terminal_size().columns)
except OSError:
    print("os none")
print("isatty", sys.stdin.isatty(), sys.stdout.isatty())
try:
    print("read", input())
except EOFError:
    print("read nothing")
try:
    print("controlling", os.open("/dev/tty", os.O_RDWR))
except OSError:
    print("controlling none")
"""
FORKED = "import torch\n"  # then a worker is forked from the process that has imported it


@pytest.fixture(autouse=True)
def _no_size_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shutil` believes these before it asks a terminal; whoever runs the tests may have set them."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal: where a user types, and what a process reads from."""
    user, process = pty.openpty()
    termios.tcsetwinsize(process, (LINES, COLUMNS))
    yield user, process
    os.close(user)
    os.close(process)


def said(out: str, rank: int) -> list[str]:
    return [line.removeprefix(f"[{rank}] ") for line in out.splitlines() if line.startswith(f"[{rank}] ")]


@pytest.mark.parametrize("first", ["", FORKED], ids=["interpreter", "forked"])
def test_a_worker_has_a_terminal_of_the_launchers_size_and_takes_nothing_that_is_typed(first, launch, terminal):
    user, process = terminal
    os.write(user, b"for the shell\n")
    code, out, err = launch(first + ASK, workers=2, stdin=process).wait()
    assert code == 0, err
    for rank in (0, 1):
        assert said(out, rank) == [
            f"stty {SIZE[0]} {SIZE[1]}", f"shutil {SIZE[1]}", f"os {SIZE[1]}", "isatty True False", "read nothing",
            "controlling none",
        ]  # fmt: skip
    assert os.read(process, 100) == b"for the shell\n"


def test_a_launcher_without_a_terminal_gives_none(launch):
    code, out, err = launch(ASK, workers=1).wait()
    assert code == 0, err
    assert said(out, 0) == ["stty ", "shutil 1", "os none", "isatty False False", "read nothing", "controlling none"]


def test_a_user_may_ask_for_a_terminal_in_a_batch_job(launch, monkeypatch):
    monkeypatch.setenv("EASGD_TERMINAL", "90x20")
    code, out, err = launch(ASK + 'print("left", os.environ.get("EASGD_TERMINAL"))', workers=1).wait()
    assert code == 0, err
    assert said(out, 0)[:3] == ["stty 20 90", "shutil 90", "os 90"]
    assert said(out, 0)[-1] == "left None", "what a worker starts would take it for its own"


@pytest.mark.parametrize("value", ["", "80", "80x", "0x24", "80x24x2", "80 x 24", "99999x1"])
def test_a_size_that_cannot_be_is_refused_in_one_line(value, launch, monkeypatch):
    monkeypatch.setenv("EASGD_TERMINAL", value)
    with pytest.raises(easgd.SettingError, match=f"EASGD_TERMINAL = {value}: .* 80x24"):
        terminal_setting()
    if value == "80":
        code, _, err = launch("", workers=1).wait()
        assert code == 2, err
        assert err.strip().splitlines()[-1].startswith("easgd: error: EASGD_TERMINAL = 80")
        assert "Traceback" not in err
