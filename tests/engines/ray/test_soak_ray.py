"""Case 28: random kills, stops and killed shards, seeded; the center stays finite, the accounting adds up."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import ray
from test_faults_ray import Run

from histories import follows
from launching import until

SECONDS = float(os.environ.get("EASGD_SOAK_SECONDS", "120"))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_faults(cluster, tmp_path):
    dice = random.Random(0)
    run = Run(tmp_path / "soak", 3, restarts=10_000, interval=1.0, shards=1, history=True)
    run.up((0, 0), (1, 0), (2, 0))
    memory = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        rank = dice.randrange(3)
        what = dice.choice(["kill", "kill", "stop", "center"])
        incarnation = max(int(p.name.rpartition("-")[2]) for p in run.folder.glob(f"at-{rank}-*"))
        pid = run.at(rank, incarnation)[0]
        if what == "center":
            os.kill(ray.get(run.host().pid.remote()), signal.SIGKILL)
            until(lambda: run.host() and _serves(run), "the shard serves again", 60)
        elif what == "stop":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(dice.uniform(0.1, 3.0))
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL)
            until(lambda r=rank, i=incarnation: run.at(r, i + 1), "it is seated again", 60)
        with open(f"/proc/{ray.get(run.host().pid.remote())}/statm") as file:
            memory.append(int(file.read().split()[1]) * 4096)
    result = run.finish()
    assert result.exit_codes == [0, 0, 0]
    assert all(value.isfinite().all() for value in result.center.values())
    follows(run.folder / "out")
    deaths = run.events("death")
    assert len(deaths) == len(run.events("restart"))
    assert max(memory) < 1.5 * min(memory) + 50e6


def _serves(run):
    return bool(ray.get(run.host().versions.remote(), timeout=30))
