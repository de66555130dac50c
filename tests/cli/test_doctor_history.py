"""`easgd doctor --history RUN` as a user types it."""

import json

import pytest

from easgd.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "a"
    line = "train --engine simulate --network digits-mlp --workers 2 --steps 30 --plain --history"
    assert main([*line.split(), "--out", str(out)]) == 0
    assert main(["train", "--resume", str(out), "--steps", "40", "--plain"]) == 0
    return out


def test_every_session_follows(run, capsys):
    assert main(["doctor", "--history", str(run)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("session-0/center: 6 changes of 1 stretches and 1 rolls replayed: all follow")
    assert second.startswith("session-1/center: 2 changes")


def test_a_damaged_history_is_named_and_so_is_one_that_does_not_follow(run, capsys, monkeypatch):
    path = run / "history" / "session-0" / "center" / "simulate.history"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"?" + whole[101:])
    try:
        assert main(["doctor", "--history", str(run)]) == 1
        assert "simulate.history: the entry at byte 0 is damaged" in capsys.readouterr().out
        path.write_bytes(whole)
        monkeypatch.setattr("easgd.methods.EAMSGD.propose", lambda self, center, message, scale: message * scale)
        assert main(["doctor", "--history", str(run), "--json"]) == 1
        difference, *_ = json.loads(capsys.readouterr().out)["session-0/center"]["differences"]
        assert "version 1, worker 1 incarnation 0 exchange 2: x̃ was found with another digest" in difference
    finally:
        path.write_bytes(whole)


def test_a_run_without_a_history_is_refused(tmp_path, capsys):
    assert main(["doctor", "--history", str(tmp_path)]) == 2
    assert "nothing was written down in it; start the run with --history" in capsys.readouterr().err
    assert main(["doctor", "--history", str(tmp_path / "nope")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
