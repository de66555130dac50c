"""The conformance suite on Ray: forced into the simulator's order, workers and shards give the simulator's numbers.

One run of three workers trains with every method on every schedule in turn; the tests look at what it left.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

import easgd
import problems
import tasks
from easgd import checkpoint
from easgd.compress import Codec
from easgd.launch.scratch import OWNER
from easgd.records import Event, Step

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(600)
COMPRESSED = ("easgd", "eamsgd", "downpour", "admm", "averaged easgd", "localsgd", "asyncdiloco")


@pytest.fixture(scope="module")
def ran(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    result = easgd.run(
        tasks.conform, problems.WORKERS, "ray", (str(folder),), schedule="round-robin", out=folder / "out", shards=2
    )
    assert result.exit_codes == [0] * problems.WORKERS
    return folder, result


def left(folder: Path, name: str, rank: int):
    state = checkpoint.load(folder / f"{name}-{rank}")
    return tuple(torch.cat([t.flatten() for t in state[key]]) for key in ("local", "center"))


ORDERED = [(name, schedule) for schedule in ("round-robin", "sync") for name in problems.fitting(schedule)]


@pytest.mark.parametrize(("name", "schedule"), ORDERED)
def test_a_forced_order_equals_the_simulator(name, schedule, ran):
    sim = problems.simulated(name, schedule)
    for rank, worker in enumerate(sim.workers):
        local = left(ran[0], f"{schedule} {name}", rank)[0]
        torch.testing.assert_close(local, worker.state.replica.read(), rtol=0, atol=5e-6)
    # The last rank takes the last turn: what it reads then is the final center.
    center = left(ran[0], f"{schedule} {name}", problems.WORKERS - 1)[1]
    torch.testing.assert_close(center, sim.center.measured, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", problems.fitting("round-robin"))
def test_hiding_the_exchange_changes_no_bit(name, ran):
    last = problems.WORKERS - 1
    for rank in range(problems.WORKERS):
        a, b = (left(ran[0], f"{how} {name}", rank) for how in ("round-robin", "blocking"))
        assert torch.equal(a[0], b[0])
        assert rank != last or torch.equal(a[1], b[1])


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "downpour", "admm"])
def test_one_worker_equals_the_simulator(name, ran):
    gradient = easgd.ModelGradient(problems.net(), problems.loss, problems.batch)
    sim = easgd.Simulation(
        gradient, gradient.x0, problems.METHODS[name], lr=0.1, workers=1, weight_decay=1e-3, scheduler=problems.decaying
    )
    sim.run(problems.STEPS)
    local, center = left(ran[0], f"one {name}", 0)
    torch.testing.assert_close(local, sim.workers[0].state.replica.read(), rtol=0, atol=5e-6)
    torch.testing.assert_close(center, sim.center.measured, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", problems.fitting("async"))
def test_asynchronous_runs_are_finite_and_move(name, ran):
    start = torch.cat([p.detach().flatten() for p in problems.net().parameters()])
    for rank in range(problems.WORKERS):
        local, center = left(ran[0], f"async {name}", rank)
        assert local.isfinite().all()
        assert center.isfinite().all()
        assert not torch.equal(local, start)


@pytest.mark.parametrize("codec", ["bf16", "int8"])
@pytest.mark.parametrize("name", COMPRESSED)
def test_compression_stays_near_the_exact_run(name, codec, ran):
    start = torch.cat([p.detach().flatten() for p in problems.net().parameters()])
    last = problems.WORKERS - 1
    exact, close = (left(ran[0], f"{how} {name}", last)[1] for how in ("round-robin", codec))
    assert (close - exact).norm() < 0.1 * (exact - start).norm()
    assert not torch.equal(close, exact)


@pytest.mark.parametrize("name", ["easgd", "downpour"])
def test_every_worker_may_compress_in_its_own_way(name, ran):
    """int4, int2 and topk at one center: it has gone about as far as the exact one, and in its direction."""
    start = torch.cat([p.detach().flatten() for p in problems.net().parameters()])
    last = problems.WORKERS - 1
    exact, mixed = (left(ran[0], f"{how} {name}", last)[1] - start for how in ("round-robin", "mixed"))
    assert torch.cosine_similarity(exact, mixed, dim=0) > 0.5
    assert 0.1 < mixed.norm() / exact.norm() < 2


def test_every_step_is_recorded_with_its_bytes(ran):
    steps = [r for r in ran[1].records if isinstance(r, Step)]
    assert all(min(r.compute, r.data, r.communication, r.waiting) >= 0 for r in steps)
    exchanged = [r for r in steps if r.bytes]
    assert all(r.staleness is not None and r.staleness >= 0 for r in exchanged)
    n = sum(p.numel() for p in problems.net().parameters())
    found = {r.bytes for r in exchanged}
    assert {8 * n, 4 * n, 2 * (n + 4)} <= found, "float32, bf16, int8: both ways"
    for name in ("int4", "int2", "topk"):
        size = Codec.named(name).bytes(n)
        assert {4 * n + size, 2 * size} <= found, "the first position in full, then changes"


def test_what_is_not_finite_is_refused_and_the_worker_starts_again(ran):
    for rank in range(problems.WORKERS):
        local, center = left(ran[0], "nan", rank)
        assert center.isfinite().all()
        assert local.isfinite().all()
    assert [r.worker for r in ran[1].records if isinstance(r, Event) and r.event == "refused"] == [1]


def test_a_model_that_does_not_fit_is_refused_with_the_difference(ran):
    assert "weight has shape (3, 4) here, (2, 4) in the run" in (ran[0] / "misfit-1").read_text()
    assert not (ran[0] / "misfit-0").exists()


def test_records_name_the_node(ran):
    joins = [r for r in ran[1].records if isinstance(r, Event) and r.event == "join"]
    assert {r.node.partition("/")[2] for r in joins} == {"127.0.0.1"}


def test_the_folder_of_our_own_ray_is_ours_alone(cluster):
    """Case 36: Ray opens its session folder to everybody; the one above it keeps everybody out."""
    assert stat.S_IMODE(os.stat(cluster.folder).st_mode) == 0o700
    assert set(os.listdir(cluster.folder)) == {"r", OWNER}, "Ray's is below it"


def test_workers_of_our_own_ray_are_no_less_important_than_other_processes(cluster):
    """Ray's niceness of 15 starves its workers on a machine that others use too."""
    import ray

    @ray.remote(num_cpus=0)
    def niceness():
        return os.nice(0)

    assert ray.get(niceness.remote(), timeout=60) == os.nice(0)
