"""A shard of the center, without Ray: at most once, membership, rounds, snapshots, the guard."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

import easgd
from easgd.compress import NAMES
from easgd.engines.ray import holds
from easgd.engines.ray import shard as shards
from easgd.engines.ray.membership import Membership, bounds_for
from easgd.engines.ray.messages import Kind, Status
from shards_by_hand import ELASTIC, N, ask, enroll, floats, make, settled


def test_an_exchange_by_hand():
    shard = make()
    status, reply, d = ask(shard, 0, 0, torch.full((N,), 8.0))
    assert (status, reply.version, reply.living) == (Status.DONE, 1, 2)
    assert floats(d).tolist() == [4.0] * N, "d = α(x − x̃) = 0.5·(8 − 0)"
    assert shard.center.slots["x"].tolist() == [4.0] * N


def test_asked_again_it_answers_the_same_and_applies_nothing():
    shard = make()
    _, _, first = ask(shard, 0, 0, torch.full((N,), 8.0))
    first = first.clone()
    ask(shard, 1, 0, torch.full((N,), 100.0))
    before = shard.center.slots["x"].clone()
    status, _, again = ask(shard, 0, 0, torch.full((N,), 8.0))
    assert status == Status.DONE
    assert torch.equal(first, again)
    assert torch.equal(shard.center.slots["x"], before)
    assert shard.version == 2


@pytest.mark.parametrize("kind", [Kind.EXCHANGE, Kind.PUSH, Kind.TOGETHER])
@pytest.mark.parametrize("method", [ELASTIC, easgd.Downpour()], ids=["easgd", "downpour"])
def test_a_worker_that_diverged_is_refused_with_distance_and_bound(kind, method):
    shard = settled(method, members=(0, 1) if kind != Kind.TOGETHER else (0,))
    before = shard.center.x.clone()
    status, reply, _ = ask(shard, 0, 3, torch.full((N,), 1e7), kind=kind, scale=0.1)
    assert status == Status.REFUSED
    assert reply.update_sqnorm**0.5 == pytest.approx(1e7 * N**0.5, rel=1e-3)
    assert 10 < reply.bound < 60
    assert torch.equal(shard.center.x, before)
    assert ask(shard, 0, 4, shard.center.x + 1e-3 if method is ELASTIC else torch.zeros(N), scale=0.1)[0] == Status.DONE


def test_the_slowest_pace_is_told_until_its_worker_is_gone():
    shard = make()
    told = [ask(shard, rank, n, torch.ones(N), pace=pace)[1].slowest for rank, n, pace in ((0, 0, 2.0), (1, 0, 7.0))]
    assert told == [2.0, 7.0]
    enroll(shard, [0], {1: 0})
    assert ask(shard, 0, 1, torch.ones(N), pace=3.0)[1].slowest == 3.0


def test_a_round_agrees_on_the_largest_pace():
    shard, told = make(), {}

    def meet(rank, pace):
        told[rank] = ask(shard, rank, 0, torch.ones(N), Kind.TOGETHER, pace=pace)[1].slowest

    other = threading.Thread(target=meet, args=(1, 46.0))
    other.start()
    meet(0, 59.0)
    other.join(60)
    assert told == {0: 59.0, 1: 59.0}
    # asked again, the answer is that of the round, whatever others have brought since
    assert ask(shard, 1, 0, torch.ones(N), Kind.TOGETHER, pace=99.0)[1].slowest == 59.0


def test_an_older_incarnation_is_refused():
    shard = make()
    assert ask(shard, 0, 0, torch.ones(N), incarnation=1)[0] == Status.DONE
    before = shard.center.slots["x"].clone()
    assert ask(shard, 0, 5, torch.ones(N), incarnation=0)[0] == Status.ZOMBIE
    assert torch.equal(shard.center.slots["x"], before)
    enroll(shard, [1], {0: 1})
    assert ask(shard, 0, 1, torch.ones(N), incarnation=1)[0] == Status.ZOMBIE, "it is known to be dead"


def test_a_message_that_comes_after_its_worker_has_left_is_not_applied_again():
    """Case 34. The link was cut, the exchange was repeated over another connection, and now the first one arrives."""
    shard = make()
    ask(shard, 0, 5, torch.full((N,), 8.0))
    enroll(shard, [1], {})
    assert shard.ledger.entries[0, 0].answer is None
    assert shard.hold() == {}, "no snapshot waits for it"
    shard.take()
    assert ask(shard, 0, 5, torch.full((N,), 8.0))[0] == Status.LOST
    assert shard.version == 1
    enroll(shard, [0, 1], {})
    assert ask(shard, 0, 6, torch.full((N,), 8.0))[0] == Status.DONE, "it has attached again, and counts on"


@pytest.mark.parametrize("codec", [None, *NAMES])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("method", [ELASTIC, easgd.Downpour()])
def test_what_is_not_finite_does_not_enter(codec, bad, method):
    shard = make(method, codec)
    vector = torch.ones(N)
    vector[7] = bad
    status, reply, answer = ask(shard, 0, 0, vector)
    assert (status, reply.version, answer) == (Status.REFUSED, 0, None)
    assert shard.center.slots["x"].abs().max() == 0


def test_a_rolled_back_shard_says_so_and_applies_nothing_twice():
    shard = make()
    ask(shard, 0, 0, torch.ones(N))
    ask(shard, 0, 1, torch.ones(N))
    saved = shard.state()
    ask(shard, 0, 2, torch.ones(N))
    again = make()
    again.load(saved)
    assert (again.version, again.epoch) == (2, 1)
    before = again.center.slots["x"].clone()
    status, reply, _ = ask(again, 0, 1, torch.ones(N))
    assert (status, reply.epoch) == (Status.LOST, 1), "it is in the checkpoint; its answer is not"
    assert torch.equal(again.center.slots["x"], before)
    assert ask(again, 0, 2, torch.ones(N))[0] == Status.DONE, "what came after the checkpoint is applied anew"
    assert not torch.equal(again.center.slots["x"], before)


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_compressed_the_sum_of_worker_and_center_is_conserved(codec):
    shard = make(codec=codec, start=torch.randn(N, generator=torch.Generator().manual_seed(0)))
    x = torch.randn(N, generator=torch.Generator().manual_seed(1))
    whole = (x + shard.center.slots["x"]).clone()
    for sequence in range(20):
        _, _, packed = ask(shard, 0, sequence, x)
        x -= shard.codec.decode(packed, N)
    torch.testing.assert_close(x + shard.center.slots["x"], whole, rtol=0, atol=2e-5)
    assert (x - shard.center.slots["x"]).abs().max() < 0.02, "and the spring has pulled them together"


def test_a_synchronous_round_by_hand():
    """x = 8 and x = 4 from x̃ = 0, α = 1/4: d = 2 and 1, x̃ = 3."""
    shard, answers = make(), {}

    def worker(rank, value):
        answers[rank] = ask(shard, rank, 0, torch.full((N,), value), Kind.TOGETHER, scale=0.25)

    threads = [threading.Thread(target=worker, args=pair) for pair in ((0, 8.0), (1, 4.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [floats(answers[rank][2])[0].item() for rank in (0, 1)] == [2.0, 1.0]
    assert (shard.center.slots["x"][0].item(), shard.version) == (3.0, 1)


def test_a_round_goes_on_without_the_dead(monkeypatch):
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.01)
    shard, told_to_wait, done = make(), threading.Event(), threading.Event()

    def worker():
        while ask(shard, 0, 0, torch.full((N,), 8.0), Kind.TOGETHER, scale=0.25)[0] == Status.WAIT:
            told_to_wait.set()
        done.set()

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    assert told_to_wait.wait(60)
    assert not done.is_set(), "the other one has not come"
    enroll(shard, [0], {1: 0})
    assert done.wait(60)
    assert shard.center.slots["x"][0].item() == 2.0


def test_a_snapshot_over_two_shards_has_whole_exchanges_only():
    """Worker 0 has reached shard a but not shard b: the snapshot waits for its other half, and holds up the next."""
    a, b = make(), make()
    ask(a, 0, 0, torch.ones(N))
    target = {}
    for shard in (a, b):
        for rank, at in shard.hold().items():
            target[rank] = max(at, target.get(rank, at))
    states = {}
    takers = [
        threading.Thread(target=lambda n=n, s=s: states.update({n: s.take(target)})) for n, s in (("a", a), ("b", b))
    ]
    for taker in takers:
        taker.start()
    ask(b, 0, 0, torch.ones(N))
    for taker in takers:
        taker.join(60)
    assert [states[n]["version"] for n in "ab"] == [1, 1]
    assert all(states[n]["whole"] for n in "ab")
    assert ask(a, 0, 1, torch.ones(N))[0] == Status.DONE, "exchanges go on"


def test_bounds():
    assert bounds_for(1000, 4) == [(0, 1000)]
    cut = bounds_for(1_000_003, 3)
    assert cut[0][0] == 0
    assert cut[-1][1] == 1_000_003
    assert all(left[1] == right[0] for left, right in itertools.pairwise(cut))
    assert all(a % 1024 == 0 for a, _ in cut)


def test_an_announcement_that_comes_late_is_ignored():
    """Whole lists of members are sent, and a threaded actor may see them in any order: the newest counts."""
    shard = make()
    ask(shard, 2, 0, torch.ones(N))
    shard.enroll(7, [0, 1, 2], {})
    shard.enroll(6, [0, 1], {})
    _, reply, first = ask(shard, 2, 1, torch.ones(N))
    assert reply.living == 3
    version = shard.version
    assert torch.equal(ask(shard, 2, 1, torch.ones(N))[2], first), "its entry in the ledger is still there"
    assert shard.version == version, "so a retry is not applied twice"


def test_membership():
    membership = Membership(1)
    header = {"size": 10}
    assert membership.open(0, 0, header)
    assert not membership.open(1, 0, header)
    membership.mark_dead(0, 0)
    assert membership.open(1, 0, header), "the next brings the start value when the first has died"
    assert not membership.join(0, 0), "a dead one does not come back"
    assert membership.join(0, 1)
    assert membership.join(1, 0)
    assert (membership.members(), membership.missing(3)) == ([0, 1], 1)
    assert [membership.holder(), Membership.load(membership.dump()).members()] == [0, [0, 1]]
    membership.leave(0, 1)
    assert membership.holder() == 1


def test_a_held_shard_lets_no_new_exchange_in(monkeypatch):
    """Between the two halves of a snapshot the shards stay as far as they are."""
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.05)
    shard = make()
    ask(shard, 0, 0, torch.ones(N))
    shard.hold()
    before = shard.center.x.clone()
    assert ask(shard, 0, 1, torch.ones(N))[0] == Status.WAIT
    assert ask(shard, 1, 0, torch.ones(N))[0] == Status.WAIT
    assert torch.equal(shard.center.x, before)
    shard.take()
    assert ask(shard, 0, 1, torch.ones(N))[0] == Status.DONE


def test_two_snapshots_at_once_do_not_release_each_other(monkeypatch):
    """A joiner's snapshot ends while the supervisor's is under way: what that one holds up stays out."""
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.05)
    shard = make()
    ask(shard, 0, 0, torch.ones(N))
    target = shard.hold("supervisor")
    shard.hold("joiner")
    shard.take({}, ticket="joiner")
    assert ask(shard, 0, 1, torch.ones(N))[0] == Status.WAIT
    state = shard.take(target, ticket="supervisor")
    assert (state["whole"], state["version"]) == (True, 1)
    assert ask(shard, 0, 1, torch.ones(N))[0] == Status.DONE


def test_a_death_does_not_end_a_round_in_the_middle_of_a_snapshot(monkeypatch):
    """The other shards, which have not heard of it yet, are copied without this round."""
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.05)
    shard = make(easgd.EASGD(moving_rate=0.5, sync=True))
    assert ask(shard, 0, 0, torch.ones(N), Kind.TOGETHER)[0] == Status.WAIT, "for worker 1"
    target = shard.hold("supervisor")
    enroll(shard, [0], {1: 0})
    state = shard.take(target, ticket="supervisor")
    assert (state["whole"], state["version"]) == (True, 0)
    assert shard.version == 1
    assert ask(shard, 0, 0, torch.ones(N), Kind.TOGETHER)[0] == Status.DONE


def test_a_snapshot_whose_hold_is_over_is_not_whole(monkeypatch):
    monkeypatch.setattr(holds, "HOLD_SECONDS", -1.0)
    shard = make()
    ask(shard, 0, 0, torch.ones(N))
    target = shard.hold("late")
    ask(shard, 0, 1, torch.ones(N))
    state = shard.take(target, ticket="late")
    assert (state["whole"], state["version"]) == (False, 2)


def test_a_snapshot_that_is_given_up_lets_exchanges_go_on(monkeypatch):
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.05)
    shard = make()
    shard.hold("one")
    assert ask(shard, 0, 0, torch.ones(N))[0] == Status.WAIT
    shard.release("one")
    assert ask(shard, 0, 0, torch.ones(N))[0] == Status.DONE
