"""Two real Ray nodes on one machine: training spans both, and ends well when one is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from easgd.bench.nodes import TwoNodes
from easgd.launch.run_directory import base
from easgd.records import Event, Step, read_records
from launching import alive, until

SCRIPT = """
import sys; sys.path[:0] = {path!r}
import tasks
tasks.until_told({folder!r}, pause=0.01, width=2048)  # 133,120 elements: two shards
"""


@pytest.fixture(scope="module")
def nodes():
    both = TwoNodes()
    yield both
    pids = both.close()
    until(lambda: not any(map(alive, pids)), "the nodes' processes have ended")


def easgd(nodes, folder, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "easgd", *arguments], cwd=folder, env={**nodes.environment, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def at(folder, rank):
    path = folder / f"at-{rank}-0"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.heavy
def test_a_wrong_token_is_refused(nodes, tmp_path):
    """Case 22."""
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it must not run')")
    environment = {"RAY_AUTH_TOKEN": "0" * 64, "HOME": str(tmp_path)}
    one = easgd(nodes, tmp_path, "launch", "--ray", nodes.address, "-n", "1", str(script), **environment)
    _, err = one.communicate(timeout=100)
    assert one.returncode == 2, err
    line = err.strip().splitlines()[-1]
    assert line.startswith(f"easgd: error: address = {nodes.address}")
    assert "RAY_AUTH_TOKEN" in line


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_machines_have_a_center_each_and_one_worker_carries_for_all(nodes, tmp_path):
    """Four workers, two on each node. Only one of a node uses the network; when it is killed, the other one does."""
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT.format(path=[p for p in sys.path if "tests" in p], folder=str(tmp_path)))
    one = easgd(
        nodes, tmp_path, "launch", "--ray", nodes.address, "-n", "4", "--machine-period", "2", "--interval", "1",
        "--out", str(out), str(script),
    )  # fmt: skip
    until(lambda: all(at(tmp_path, rank) for rank in range(4)), "all train", 200)
    node = until(lambda: joined(out) if len(joined(out)) == 4 else None, "all have joined")
    assert sorted(node.values()) == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]
    assert {at(tmp_path, rank)[2] for rank in range(4)} == {2}  # α₁ follows the workers of the machine
    until(lambda: len({node[r] for r in carriers(out)}) == 2, "both machines have exchanged with the run's center")
    first = carriers(out)
    assert len(first) == 2
    killed = next(rank for rank in first if node[rank] == "127.0.0.3")
    (left,) = (rank for rank in node if node[rank] == "127.0.0.3" and rank != killed)
    until(lambda: first <= senders(out), "what they have sent is in their records")
    os.kill(at(tmp_path, killed)[0], signal.SIGKILL)
    until(lambda: left in carriers(out), "the other worker of the machine carries now")
    until(lambda: at(tmp_path, left)[2] == 1, "the machine counts one worker")
    until(lambda: left in senders(out), "what it has sent is in its records")
    (tmp_path / "go").touch()
    _, err = one.communicate(timeout=60)
    assert one.returncode == 1, err
    assert "the center is saved" in err
    assert senders(out) == {*first, left}
    assert not list(base().glob("*@*"))  # of a machine whose last worker has left, nothing stays in memory


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_training_over_two_nodes_survives_the_loss_of_one(nodes, tmp_path):
    """The records of the second node come through the coordinator, as from a machine with a disk of its own."""
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT.format(path=[p for p in sys.path if "tests" in p], folder=str(tmp_path)))
    one = easgd(
        nodes, tmp_path, "launch", "--ray", nodes.address, "-n", "2", "--shards", "2", "--interval", "1",
        "--out", str(out), str(script), EASGD_RAY_SCRATCH="1",
    )  # fmt: skip
    until(lambda: all(at(tmp_path, rank) for rank in range(2)), "all train", 100)
    until(lambda: (out / "state.safetensors").exists(), "the center is saved")
    joins = until(lambda: joined(out) if len(joined(out)) == 2 else None, "all have joined")
    assert set(joins.values()) == {"127.0.0.2", "127.0.0.3"}
    nodes.kill(nodes.second)
    (here,) = (rank for rank, node in joins.items() if node == "127.0.0.2")
    until(lambda: any("shard" in r.detail for r in events(out, "restored")), "the lost shard is back", 100)
    before = at(tmp_path, here)[1]
    until(lambda: at(tmp_path, here)[1] > before + 50, "the worker of the first node goes on")
    until(lambda: at(tmp_path, here)[2] == 1, "the lost one is no longer counted")
    (tmp_path / "go").touch()
    out_text, err = one.communicate(timeout=60)
    assert one.returncode == 1, err
    assert "the center is saved" in err
    assert "127.0.0.2: 1" in out_text
    assert sum(isinstance(r, Step) for r in read_records(out)) > 50
    assert [r.worker for r in events(out, "death")] == [1 - here]
    assert {r.worker for r in events(out, "rollback")} == {here}


def events(out, kind):
    return [r for r in read_records(out) if isinstance(r, Event) and r.event == kind]


def carriers(out):
    return {r.worker for r in events(out, "machine")}


def senders(out):
    return {r.worker for r in read_records(out) if isinstance(r, Step) and r.bytes}


def joined(out):
    return {r.worker: r.node.partition("/")[2] for r in events(out, "join")}
