"""The center in shared memory under real processes: nothing lost, nothing torn, nothing left locked."""

import itertools
import os
import signal
import time

import numpy as np
import pytest
import torch

import easgd
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.engines.local.client import SharedMemoryClient, read_center
from easgd.engines.local.control import DEAD, LIVES, STATES, STRIPES, TURN, mark_dead
from easgd.engines.local.segment import stripes_for
from easgd.locks import RecordLocks
from processes import FRESH

N = 1_500_000  # five stripes


def layout(n=N):
    return Layout(("w",), ((n,),), ((1,),), ("torch.float32",))


def open_center(folder, rank, method, n=N, workers=4):
    center = SharedMemoryClient(folder, JoinRequest(method, torch.zeros(n), layout(n), rank, launched=workers))
    center.join(0)
    return center


def start(target, *args):
    process = FRESH.Process(target=target, args=args)
    process.start()
    return process


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


def test_a_rank_beyond_the_control_words_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(easgd.SettingError, match="rank = 1024: one machine has at most 1024 workers"):
        open_center(folder, 1024, easgd.EASGD(), n=10)
    assert not any(folder.iterdir())  # nothing was laid out


def exchange_many(folder, rank, count, queue):
    torch.set_num_threads(1)
    center = open_center(folder, rank, easgd.EASGD(period=1, moving_rate=0.3))
    x = torch.from_numpy(np.random.default_rng(rank).standard_normal(N).astype(np.float32))
    begin = x.sum(dtype=torch.float64).item()
    for _ in range(count):
        x -= center.exchange(x.clone(), 0.3)
    queue.put((begin, x.sum(dtype=torch.float64).item()))
    center.leave()


def test_concurrent_exchanges_lose_no_update(tmp_path):
    """Σxⁱ + x̃ is the same before and after 4 × 120 exchanges of processes that never wait for each other."""
    queue = FRESH.Queue()
    processes = [start(exchange_many, tmp_path, rank, 120, queue) for rank in range(4)]
    sums = [queue.get(timeout=100) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    center = read_center(tmp_path)["w"].sum(dtype=torch.float64).item()
    before, after = sum(b for b, _ in sums), sum(a for _, a in sums) + center
    # One lost update of a single stripe would move the sum by hundreds; float32 rounding by far less than one.
    assert after == pytest.approx(before, abs=1.0)


def push_ones(folder, rank, ready):
    torch.set_num_threads(1)
    center = open_center(folder, rank, easgd.Downpour())
    ones = torch.ones(N)
    while True:
        center.exchange(ones.clone(), 1.0)
        ready.set()


def test_a_snapshot_sees_whole_exchanges_only(tmp_path):
    ready = [FRESH.Event(), FRESH.Event()]
    pushing = [start(push_ones, tmp_path, rank, ready[rank]) for rank in range(2)]
    try:
        for event in ready:
            assert event.wait(60)
        center = open_center(tmp_path, 2, easgd.Downpour())
        seen = []
        for _ in range(20):
            x = center.snapshot()["x"]
            assert x.min() == x.max()
            seen.append(x[0].item())
        assert seen == sorted(seen)
        assert seen[-1] > seen[0]
    finally:
        for process in pushing:
            process.kill()
            process.join()
    center.leave()


def test_a_worker_killed_while_it_enters_again_is_marked_dead(tmp_path):
    """Its launcher knows it by its incarnation: that must be there before the word that says that it is in the run."""
    center = open_center(tmp_path, 0, easgd.Downpour(), n=10)
    control, words = center.control, center.words

    class UntilJoined:
        def __getitem__(self, at):
            return words[at]

        def __setitem__(self, at, value):
            words[at] = value
            if at == STATES + 1:
                raise InterruptedError

    control.words = UntilJoined()
    with pytest.raises(InterruptedError):
        control.enter(1, incarnation=3)
    control.words = words
    mark_dead(tmp_path, 1, 3)
    assert words[STATES + 1] == DEAD
    assert center.living == 1
    center.leave()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_killed_worker_leaves_every_element_before_or_after(tmp_path, seed):
    ready = FRESH.Event()
    victim = start(push_ones, tmp_path, 0, ready)
    assert ready.wait(60)
    center = open_center(tmp_path, 1, easgd.Downpour())
    # It is struck somewhere in an exchange: which one is the seed's.
    later = center.version + np.random.default_rng(seed).integers(1, 40)
    wait_for(lambda: center.version >= later)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    x = center.snapshot()["x"]
    assert torch.equal(x, x.round())
    assert x.max() - x.min() <= 1
    assert center.exchange(torch.ones(N), 1.0) is not None  # no lock stayed closed
    center.leave()


def die_in_a_stripe(folder, holding):
    center = open_center(folder, 0, easgd.Downpour())
    center.locks.take(STRIPES + 2)
    a, b = center.segment.bounds[2]
    center.segment.slots["x"][a : (a + b) // 2] += 1
    holding.set()
    time.sleep(60)


def test_a_lock_falls_open_when_its_holder_is_killed(tmp_path):
    holding = FRESH.Event()
    victim = start(die_in_a_stripe, tmp_path, holding)
    assert holding.wait(60)
    center = open_center(tmp_path, 1, easgd.Downpour())
    assert not center.locks.try_take(STRIPES + 2)
    os.kill(victim.pid, signal.SIGKILL)
    wait_for(lambda: center.locks.try_take(STRIPES + 2))
    center.locks.release(STRIPES + 2)
    answer = center.exchange(torch.ones(N), 1.0)
    assert set(answer.unique().tolist()) == {1.0, 2.0}
    victim.join()
    center.leave()


def meet(folder, rank, rounds, die_at, queue):
    torch.set_num_threads(1)
    center = open_center(folder, rank, easgd.EASGD(period=1, beta=0.6, sync=True), n=10, workers=3)
    while center.living < 3:
        time.sleep(0.001)
    x = torch.full((10,), float(rank))
    for t in range(rounds):
        if t == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x -= center.exchange_together(x, 0.6 / center.living, deadline=60)
    queue.put((rank, x[0].item()))
    center.leave()


def test_synchronous_rounds_are_equations_3_and_4(tmp_path):
    queue = FRESH.Queue()
    processes = [start(meet, tmp_path, rank, 5, None, queue) for rank in range(3)]
    ours = dict(queue.get(timeout=100) for _ in processes)
    for process in processes:
        process.join(60)
    x, center = np.arange(3.0), 0.0
    for _ in range(5):
        d = 0.2 * (x - center)
        x, center = x - d, center + d.sum()
    assert [ours[rank] for rank in range(3)] == pytest.approx(x, abs=1e-6)
    assert read_center(tmp_path)["w"][0].item() == pytest.approx(center, abs=1e-6)


def test_a_synchronous_round_survives_a_death(tmp_path):
    """Nobody buries the dead here: the waiting ones find its life lock open, and the round shrinks."""
    queue = FRESH.Queue()
    processes = [start(meet, tmp_path, rank, 6, 3 if rank == 1 else None, queue) for rank in range(3)]
    ours = dict(queue.get(timeout=100) for _ in range(2))
    for process in processes:
        process.join(60)
    assert set(ours) == {0, 2}
    assert processes[1].exitcode == -signal.SIGKILL
    assert RecordLocks.of(tmp_path / "locks").try_take(LIVES + 1)


def test_a_joiner_does_not_change_whose_turn_it_is(tmp_path):
    method = easgd.EASGD(period=1, beta=0.8)
    first, second = (open_center(tmp_path, rank, method, n=10, workers=2) for rank in (0, 1))
    for holder in (first, second, first):
        assert first.words[TURN] == holder.rank
        holder.pass_turn()
    third = open_center(tmp_path, 2, method, n=10, workers=2)
    for holder in (second, third, first, second):
        assert first.words[TURN] == holder.rank
        holder.pass_turn()
    third.leave()
    first.wait_turn(60)  # the turn of the one that has left is passed over
    for one in (first, second):
        one.leave()


def test_membership_follows_joins_leaves_and_burials(tmp_path):
    method = easgd.EASGD(period=1, beta=0.8)
    first, second = (open_center(tmp_path, rank, method, n=10) for rank in (0, 1))
    assert first.living == 2
    mark_dead(tmp_path, 1, incarnation=5)  # not the incarnation that lives
    assert first.living == 2
    mark_dead(tmp_path, 1, incarnation=0)
    assert first.living == 1
    assert second.words[STATES + 1] == DEAD
    second.join(1)
    assert first.living == 2
    second.leave()
    assert first.living == 1
    first.leave()


METHODS = {
    "elastic": easgd.EASGD(period=1, moving_rate=0.3),
    "downpour": easgd.Downpour(),
    "mdownpour": easgd.MDownpour(momentum=0.9),
    "admm": easgd.ADMM(1.0),
}


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["elastic", "downpour", "mdownpour", "admm"])
def test_a_refused_message_leaves_the_center_as_it_was(tmp_path, name, poison):
    center = open_center(tmp_path, 0, METHODS[name], n=300_000)
    center.exchange(torch.ones(300_000), 0.5)
    before = center.snapshot()["x"]
    bad = torch.full((300_000,), 1e15)  # what went in and came out again would leave nothing of the center
    bad[250_000] = poison
    assert center.exchange(bad, 0.5) is None
    assert torch.equal(center.snapshot()["x"], before)
    assert center.version == 1
    center.leave()


def test_stripes_are_few_for_a_small_vector_and_meet_at_cache_lines(tmp_path):
    assert [stripes_for(n)[0] for n in (1, 351_946, 1_000_000, 25_000_000)] == [1, 1, 3, 32]
    assert stripes_for(1_000_000, 4) == [1] * 4
    assert stripes_for(600_000_000, 100) == [10] * 100, "a thousand locks at most"
    bounds = open_center(tmp_path, 0, easgd.EASGD()).segment.bounds
    assert bounds[0][0] == 0
    assert bounds[-1][1] == N
    assert all(a[1] == b[0] and a[1] % 16 == 0 for a, b in itertools.pairwise(bounds))
