"""Training over a link that is cut and mended, works one way only, or is slowed to a tenth: two machines of the
laboratory, a Ray node on each.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from easgd.engines.ray.supervisor import load_state
from easgd.records import Event, Step, read_records
from launching import until

SCRIPT = """
import sys; sys.path[:0] = {path!r}
import tasks
tasks.until_told({folder!r}, period=5, pause=0.01, width=2048)  # 133,120 elements: two shards
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def training(lab, tmp_path):
    """Train on both machines over 100 Mbit/s until `go` is there; yield the clocks, and a call that ends the run."""
    lab.mend()
    lab.shape(100)
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT.format(path=[p for p in sys.path if "tests" in p], folder=str(tmp_path)))
    process = lab.easgd(
        "launch", "--ray", lab.nodes.address, "-n", "2", "--out", str(out), str(script), cwd=tmp_path,
        environment={"EASGD_RAY_SCRATCH": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def clocks():
        return [int(p.read_text().split()[1]) for rank in (0, 1) if (p := tmp_path / f"at-{rank}-0").exists()]

    def end():
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        return out

    until(lambda: len(clocks()) == 2 and min(clocks()) > 20, "both train", 100)
    yield clocks, end
    if process.poll() is None:
        process.kill()
        process.communicate()


def goes_on(clocks, steps=30, seconds=60):
    before = clocks()
    until(lambda: all(now > then + steps for now, then in zip(clocks(), before, strict=True)), "both go on", seconds)


def check(out, lost=0):
    """Every exchange that a worker recorded as answered is in every shard once; no other is."""
    records = list(read_records(out))
    answered = sum(isinstance(r, Step) and r.staleness is not None for r in records)
    shards = load_state(out)["centers"]["center"]["shards"]
    assert len(shards) == 2
    for shard in shards:
        assert answered <= shard["version"] <= answered + lost
    assert {r.node.partition("/")[2] for r in events(out, "join")} == {"10.77.0.1", "10.77.0.2"}
    return records


def events(out, kind):
    return [r for r in read_records(out) if isinstance(r, Event) and r.event == kind]


def test_the_link_is_cut_for_20_seconds_and_mended(lab, training):
    """Case 34."""
    clocks, end = training
    before = clocks()
    lab.cut()
    time.sleep(20)
    during = clocks()
    lab.mend()
    goes_on(clocks)
    out = end()
    check(out)
    for rank in (0, 1):
        assert during[rank] >= before[rank]
        assert [r.worker for r in events(out, "unreachable")].count(rank) >= 1
        assert [r.worker for r in events(out, "reached")].count(rank) == 1
    assert not events(out, "death")


def test_the_link_works_one_way_only(lab, training):
    """Case 34. What machine 1 sends is lost: messages to shard 0, and answers of shard 1 that it has applied."""
    clocks, end = training
    lab.cut(1)
    time.sleep(8)
    lab.mend()
    goes_on(clocks)
    out = end()
    check(out)
    assert {r.worker for r in events(out, "reached")} == {0, 1}


def test_the_link_is_slowed_to_a_tenth(lab, training):
    """Case 34. An exchange takes ten times longer; nobody is given up."""
    clocks, end = training
    lab.shape(10)
    goes_on(clocks)
    lab.shape(1)
    goes_on(clocks, steps=10)
    out = end()
    check(out)
    assert not events(out, "death")
    assert not events(out, "fallback")


SLOW_STATE = """
import os, socket, sys, time
import numpy as np, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from easgd.engines.ray import actor_link

ray.init(address=sys.argv[1], log_to_driver=False)
there = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] != sys.argv[1].split(":")[0])

@ray.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(there, soft=False))
class Shard:
    def take(self, center, target, ticket):
        return {"slots": {"x": np.ones(1 << 20, np.float32)}}

shard = Shard.remote()
ray.get(shard.__ray_ready__.remote())
start = time.monotonic()
state, = actor_link.snapshot([shard], "center", seconds=3.0)
print(int(state["slots"]["x"].sum()), time.monotonic() - start > 3.0)
"""


def test_a_state_that_is_long_under_way_is_no_silence(lab, tmp_path):
    lab.nodes  # noqa: B018 - started while the link is fast
    lab.mend()
    lab.shape(4)  # 4 MB take 8 seconds
    script = tmp_path / "read.py"
    script.write_text(SLOW_STATE)
    reading = lab.python(str(script), lab.nodes.address, stdout=subprocess.PIPE, text=True)
    out, _ = reading.communicate(timeout=200)
    assert out.split() == [str(1 << 20), "True"]
