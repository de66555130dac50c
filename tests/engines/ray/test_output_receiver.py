"""Output that other machines sent: where it is written."""

from __future__ import annotations

import errno

import numpy as np
import pytest

pytest.importorskip("ray")

from easgd.engines.ray import supervisor
from easgd.engines.ray.output_receiver import OutputReceiver
from easgd.engines.ray.supervisor import Supervisor, saved_center


def test_output_goes_to_logs_and_records_to_their_folders(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    receiver = OutputReceiver(out)
    receiver.deliver([("out-1", b"one\ntw"), ("err-1", b"bad\n"), ("out-1", b"o")])
    receiver.deliver([("records-1-0.jsonl", b"{}\n"), ("centers/b/records-1-0.jsonl", b"[]\n")])
    receiver.deliver([("../outside.jsonl", b"x")])
    receiver.close()
    assert (out / "logs" / "worker-1.log").read_bytes() == b"one\ntwbad\no"
    assert (out / "records-1-0.jsonl").read_text() == "{}\n"
    assert (out / "centers" / "b" / "records-1-0.jsonl").read_text() == "[]\n"
    assert not (tmp_path / "outside.jsonl").exists()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[1] one\n[1] two\n", "[1] bad\n")


def test_records_that_cannot_be_written_cost_the_records_only(tmp_path, capsys):
    """Case 18: the launcher goes on, and says it once."""
    (tmp_path / "records-0-0.jsonl").mkdir()
    receiver = OutputReceiver(tmp_path)
    receiver.deliver([("records-0-0.jsonl", b"{}"), ("records-0-0.jsonl", b"{}"), ("records-1-0.jsonl", b"{}")])
    assert capsys.readouterr().err.count("records are no longer written in") == 1
    assert (tmp_path / "records-1-0.jsonl").read_bytes() == b"{}"


def test_a_full_disk_leaves_both_saved_states(tmp_path, monkeypatch, capsys):
    """Case 18: the center is saved whole, or the two before it stay."""
    values = iter(range(10))

    def snapshot(shards, center):
        return [{"slots": {"x": np.full(2, float(next(values)), np.float32)}, "version": 1, "clocks": [[1, 0]]}]

    monkeypatch.setattr(supervisor.actor_link, "snapshot", snapshot)
    one = Supervisor(None, [None], tmp_path, None, 1.0)
    one.copy["memberships"] = {"center": {"opened": True, "bounds": [(0, 2)], "header": {}}}
    one.save()
    one.save()
    assert saved_center(tmp_path)["slots"]["x"].tolist() == [1.0, 1.0]

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor.checkpoint, "save", full)
    one.save()
    one.save()
    assert capsys.readouterr().err.count("the center could not be saved") == 1
    assert saved_center(tmp_path)["slots"]["x"].tolist() == [1.0, 1.0]
    (tmp_path / supervisor.STATE).unlink()
    assert saved_center(tmp_path)["slots"]["x"].tolist() == [0.0, 0.0]
