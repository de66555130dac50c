"""Case 28 on one machine: random kills, stops and joiners, seeded; the center stays finite, the accounting adds up."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_launch_training import TRAINING

from histories import follows
from launching import until

SECONDS = float(os.environ.get("EASGD_SOAK_SECONDS", "60"))


def newest(one, rank: int) -> int:
    return max(int(path.name.rpartition("-")[2]) for path in one.out.glob(f"up-{rank}-*"))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_faults(launch, shared):
    dice = random.Random(0)
    one = launch(TRAINING, "--restarts", "100000", "--history", workers=3)
    one.pids(3)
    run, memory, joiners, kills = Path(one.run), [], 0, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        rank, what = dice.randrange(3), dice.choice(["kill", "kill", "stop", "join"])
        incarnation = newest(one, rank)
        if what == "join":  # a worker of a second launcher, which is killed with it
            joined = launch(TRAINING, "--join", run.name, where=f"join-{joiners}", workers=1)
            until(lambda known=joiners: len(one.events("join")) > known, "it has joined", 60)
            joiners += 1
            joined.process.send_signal(signal.SIGKILL)
        elif what == "stop":
            os.kill(one.pid(rank, incarnation), signal.SIGSTOP)
            time.sleep(dice.uniform(0.1, 2.0))
            os.kill(one.pid(rank, incarnation), signal.SIGCONT)
        else:
            os.kill(one.pid(rank, incarnation), signal.SIGKILL)
            one.pid(rank, incarnation + 1)
            kills += 1
        statm = Path(f"/proc/{one.process.pid}/statm").read_text().split()
        memory.append(int(statm[1]) * os.sysconf("SC_PAGE_SIZE"))
    one.touch("go")
    code, _, err = one.wait()
    assert code == 0, err
    center = load_file(one.out / "center.safetensors")
    assert all(torch.isfinite(value).all() for value in center.values())
    own = [event for event in one.events("death") if event["worker"] < 3]
    assert len(own) == len(one.events("restart")) == kills
    assert max(memory) < 1.2 * min(memory) + 20e6
    follows(one.out)
    assert not run.exists()
    assert list(shared.iterdir()) == []
