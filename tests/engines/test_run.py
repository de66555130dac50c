"""`easgd.run`: a function on several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import easgd
import functions
from easgd.records import Event, Step
from launching import DEADLINE, alive, until


@pytest.fixture(autouse=True)
def _no_template(monkeypatch):
    """These functions need no torch: a process that imports it first would only take time."""
    monkeypatch.setenv("EASGD_FORK", "0")


def test_every_worker_calls_the_function_with_its_arguments(tmp_path, shared):
    result = easgd.run(functions.tell, workers=2, args=(str(tmp_path), "hello"), schedule="sync")
    assert result.exit_codes == [0, 0]
    assert result.center is None, "nobody attached"
    for rank in (0, 1):
        greeting, place = json.loads((tmp_path / f"told-{rank}").read_text())
        assert greeting == "hello"
        assert list(place.values()) == [str(rank), "2", "0", "sync"]
    assert list(shared.iterdir()) == []


def test_failures_are_told_apart_and_the_others_go_on(capfd):
    result = easgd.run(functions.fail_once, workers=4, args=({1: "raise", 2: "exit", 3: "kill"},))
    assert result.exit_codes == [0, 1, 5, -signal.SIGKILL]
    assert "[1] ValueError: boom" in capfd.readouterr().err
    deaths = {r.worker: r.detail for r in result.records if isinstance(r, Event) and r.event == "death"}
    assert deaths == {1: "exit code 1", 2: "exit code 5", 3: "signal SIGKILL"}


def test_restarts(tmp_path):
    result = easgd.run(functions.fail_once, workers=2, args=({1: "kill"},), restarts=1, out=tmp_path / "out")
    assert result.exit_codes == [0, 0]
    assert [r.event for r in result.records if r.worker == 1] == ["death", "restart", "leave"]
    assert (tmp_path / "out" / "logs" / "worker-1.log").exists()


def test_records_and_breakdown():
    result = easgd.run(functions.record, workers=2, args=(3.0,))
    assert len([r for r in result.records if isinstance(r, Step)]) == 2
    split = result.breakdown()
    assert (split.steps, split.compute, split.communication) == (1, 3.0, 0.75)
    assert result.breakdown(1).waiting == 0.25


def test_large_arguments_arrive_whole(tmp_path):
    """More than a pipe holds."""
    assert easgd.run(functions.length, workers=2, args=(b"x" * 3_000_000, str(tmp_path))).exit_codes == [0, 0]
    assert [(tmp_path / f"length-{rank}").read_text() for rank in (0, 1)] == ["3000000"] * 2


SCRIPT = """
import os, pathlib, sys, easgd
def fn(folder):
    pathlib.Path(folder, "main-" + os.environ["EASGD_RANK"]).touch()
"""


def test_from_a_scripts_main_guard(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT + "if __name__ == '__main__':\n    print(easgd.run(fn, 2, args=(sys.argv[1],)).exit_codes)\n"
    )
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 0]\n", done.stderr
    assert len(list(tmp_path.glob("main-*"))) == 2


def test_without_a_main_guard_workers_say_what_is_missing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + "print(easgd.run(fn, 2, args=(sys.argv[1],)).exit_codes)\n")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[2, 2]\n", done.stderr
    assert 'put it under `if __name__ == "__main__":`' in done.stderr


def test_from_a_prompt_the_error_says_what_to_do():
    program = "import easgd\ndef fn(): pass\neasgd.run(fn, 2)\n"
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert "SettingError" in done.stderr
    assert "from train import fn" in done.stderr


def test_ctrl_c_clears_up_and_then_interrupts_the_caller(tmp_path, shared):
    program = f"""
import sys; sys.path.insert(0, {str(Path(functions.__file__).parent)!r})
import signal, easgd, functions
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    try:
        easgd.run(functions.wait_forever, 2, args=({str(tmp_path)!r},))
    except KeyboardInterrupt:
        print("interrupted")
"""
    script = tmp_path / "train.py"
    script.write_text(program)
    caller = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    pids = [until(lambda rank=rank: _read(tmp_path / f"up-{rank}"), "it is up") for rank in (0, 1)]
    caller.send_signal(signal.SIGINT)
    assert caller.communicate(timeout=DEADLINE)[0] == "interrupted\n"
    assert not any(map(alive, pids))
    assert list(shared.iterdir()) == []


def _read(path: Path) -> int | None:
    text = path.read_text() if path.exists() else ""
    return int(text) if text else None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers = 0"),
        ({"workers": True}, "workers = True"),
        ({"restarts": -1}, "restarts = -1"),
        ({"schedule": "synk"}, "did you mean 'sync'"),
        ({"engine": "simulate"}, "easgd.simulate"),
        ({"shards": 2}, "only engine='ray'"),
        ({"engine": "ray", "shard": 2}, "did you mean 'shards'"),
        ({"engine": "ray", "workers": 0}, "workers = 0"),
        ({"engine": "ray", "address": "nowhere"}, "host:port"),
        ({"engine": "ray", "compression": "int9"}, "did you mean 'int8'"),
        ({"engine": "lokal"}, "did you mean 'local'"),
        ({"fn": lambda: None}, "top level of a module"),
        ({"args": (open(os.devnull),)}, "cannot be sent to a worker"),  # noqa: SIM115
    ],
)
def test_bad_settings_are_refused_before_anything_starts(settings, words, shared):
    with pytest.raises(easgd.SettingError, match=words) as caught:
        easgd.run(**{"fn": functions.record, "args": (1.0,), **settings})
    assert "\n" not in str(caught.value)
    assert list(shared.iterdir()) == []
