"""`easgd bench wire` on two nodes of this machine, with small messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ray")

from easgd.bench import wire
from easgd.engines.ray.shard_actor import ShardActor
from easgd.engines.ray.sockets import SocketServer

PROGRAM = """
import json
from easgd.bench import wire
print(json.dumps([row.as_dict() for row in wire.rows(megabytes=(4,))]))
"""


class Host:
    """The actor that the bench opens centers in, in this process."""

    def __init__(self):
        self.actor = ShardActor()
        self.open = SimpleNamespace(remote=self.actor.open)


def test_a_step_waits_for_one_fragment_at_a_time(monkeypatch):
    monkeypatch.setattr("ray.get", lambda answer: answer)
    host, n = Host(), 8000
    actor = host.actor
    server = SocketServer("127.0.0.1", b"s" * 32, actor._serve, actor._expected, actor._pipeline)
    stalls = wire.Stalls(host, "center", server.address, b"s" * 32, n, 8)
    x = stalls.x.clone()
    assert stalls.longest() > 0
    assert [part.version for part in actor.shards["center"].center.parts] == [1] * 8
    assert stalls.client.bytes_sent == 8 * n, "every fragment once, both ways"
    assert not torch.equal(stalls.x, x)
    stalls.client.transport.close()
    server.listener.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows():
    """Slow for its two nodes: each has processes of its own to start."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ, capture_output=True, text=True, timeout=280, check=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row["case"] for row in rows if row["unit"] == "GB/s"] == [
        f"4 MB, {where}, {how}" for where in ("one node", "two nodes") for how in ("sockets", "Ray's calls", "gloo")
    ]
    stalls = [row["case"] for row in rows if "stall" in row["case"]]
    assert stalls == [f"4 MB, {where}, longest stall of a step, 8 fragments" for where in ("one node", "two nodes")]
    assert all(row["value"] > 0 for row in rows)
    assert all(abs(row["ratio"] - row["value"] / row["reference"]) < 1e-6 for row in rows)
