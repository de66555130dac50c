"""Synchronous rounds in shared memory: the sum is taken in the order of the ranks, whoever comes first."""

from __future__ import annotations

import pytest
import torch

import easgd
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.engines.local.client import SharedMemoryClient
from easgd.engines.local.control import ABSORBED, APPLIED
from processes import FRESH

N = 600_000  # two stripes
PUSHES = (1e8, 1.0, -1e8)
"""In float32 (1e8 + 1) − 1e8 = 0, but (1e8 − 1e8) + 1 = 1: the order shows."""
ORDERS = ((0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)) * 2


def meet(folder, rank, go, begun, queue):
    torch.set_num_threads(1)
    layout = Layout(("w",), ((N,),), ((1,),), ("torch.float32",))
    client = SharedMemoryClient(folder, JoinRequest(easgd.Downpour(), torch.zeros(N), layout, rank, launched=3))
    assert len(client.states) == 2
    client.join(0)
    assert client.gather(60) == 0
    for _ in ORDERS:
        assert go.acquire(timeout=60)
        begun.release()
        answer = client.exchange_together(torch.full((N,), PUSHES[rank]), 1.0, deadline=60)
        queue.put(answer.abs().max().item())
    client.leave()


def test_a_sum_does_not_depend_on_who_comes_first(tmp_path):
    queue = FRESH.Queue()
    signals = [(FRESH.Semaphore(0), FRESH.Semaphore(0)) for _ in PUSHES]
    processes = [
        FRESH.Process(target=meet, args=(tmp_path, rank, *signals[rank], queue), daemon=True)
        for rank in range(len(PUSHES))
    ]
    for process in processes:
        process.start()
    for order in ORDERS:
        for rank in order:  # each begins before the next is let go
            signals[rank][0].release()
            assert signals[rank][1].acquire(timeout=90)
        assert [queue.get(timeout=60) for _ in order] == [0.0] * 3, f"the order {order} gave another sum"
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_a_round_that_was_broken_off_goes_on_where_it_was(tmp_path):
    """Whoever absorbs the sum is killed after the first stripe: the next worker does the second, and none twice."""
    layout = Layout(("w",), ((N,),), ((1,),), ("torch.float32",))
    client = SharedMemoryClient(tmp_path, JoinRequest(easgd.Downpour(), torch.zeros(N), layout, 0))
    client.join(0)
    rounds, (first, second) = client.rounds, client.states
    for state in (first, second):
        state.add_to_round(torch.ones(state.x.numel()))
    rounds.words[APPLIED] = 1  # one worker has brought a change of the only fragment

    def killed():
        raise InterruptedError

    second.end_round, end_round = killed, second.end_round
    with pytest.raises(InterruptedError):
        rounds._absorb_sum()
    second.end_round = end_round
    rounds._absorb_sum()
    assert (first.version, second.version) == (1, 1)
    assert client.snapshot()["x"].tolist() == [1.0] * N
    client.leave()


class LastWrite:
    """Control words whose reader is killed before its n-th write."""

    def __init__(self, words, writes):
        self.words, self.left = words, writes

    def __getitem__(self, at):
        return self.words[at]

    def __setitem__(self, at, value):
        if not self.left:
            raise InterruptedError
        self.left -= 1
        self.words[at] = value


@pytest.mark.parametrize("writes", range(4))
def test_no_stripe_is_updated_twice_wherever_a_round_was_broken_off(tmp_path, writes):
    """Also between the update and the word that says so: an outer momentum would take a second step."""
    layout = Layout(("w",), ((N,),), ((1,),), ("torch.float32",))
    client = SharedMemoryClient(tmp_path, JoinRequest(easgd.DiLoCo(), torch.zeros(N), layout, 0))
    client.join(0)
    rounds, words = client.rounds, client.rounds.words
    for state in client.states:
        state.add_to_round(torch.ones(state.x.numel()))
    words[APPLIED] = 1
    rounds.words = LastWrite(words, writes)
    with pytest.raises(InterruptedError):
        rounds._absorb_sum()
    rounds.words = words
    rounds._absorb_sum()
    assert [state.version for state in client.states] == [1, 1]
    x = client.snapshot()["x"]
    assert x.min() == x.max()
    assert (words[APPLIED], words[ABSORBED]) == (0, 0)
    client.leave()
