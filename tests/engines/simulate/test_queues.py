"""The center's queue on the virtual clock: where arithmetic says that it saturates, with shards and requests."""

import pytest
import torch

import easgd
from easgd.engines.simulate.exchange_cost import Queue, shard_work
from easgd.errors import SettingError
from easgd.records import Step

ONE = torch.ones(1, dtype=torch.float64)


def still(x, worker, step):
    return torch.zeros_like(x)


def steps_per_second(workers, period, cost, steps=400, **settings):
    """The steps of all workers together, without the first half: the queue needs time to grow."""
    sim = easgd.Simulation(
        still,
        ONE,
        easgd.EASGD(period=period),
        lr=0.1,
        workers=workers,
        schedule="async",
        cost=cost,
        guard=0,
        **settings,
    )
    sim.run(steps // 2)
    before = sim.time
    sim.run(steps // 2)
    return steps // 2 / (sim.time - before)


def cost(**settings):
    return easgd.CostModel(jitter=0.0, compute=1.0, **settings)


@pytest.mark.parametrize(
    ("period", "shards", "expected"),
    [
        (1, 1, 4.0),  # 8 exchanges a second are asked for, a service of 0.25 s allows 4
        (2, 1, 8.0),  # 4 are asked for: just enough
        (4, 1, 8.0),
        (1, 2, 8.0),  # two shards, half of the service each
    ],
)
def test_throughput_is_the_smaller_of_what_is_asked_and_what_is_served(period, shards, expected):
    """min(p/s, τ/c) with p = 8, s = 1, c = 0.25/S."""
    model = cost(service=0.25, shards=shards)
    assert steps_per_second(8, period, model) == pytest.approx(expected, rel=0.02)


def test_a_request_costs_the_same_on_every_shard():
    """0.2 s a request and 0.4 s of service in four: 1/(0.2 + 0.1) exchanges a second; one shard has 1/0.6."""
    assert steps_per_second(8, 1, cost(service=0.4, request=0.2, shards=4)) == pytest.approx(1 / 0.3, rel=0.02)
    assert steps_per_second(8, 1, cost(service=0.4, request=0.2)) == pytest.approx(1 / 0.6, rel=0.02)


def test_a_saturated_center_shows_as_waiting():
    """Eight workers take turns at 0.25 s each: a cycle of 2 s, of which the gradient hides one."""
    records = easgd.simulate(
        still, ONE, easgd.EASGD(period=1), lr=0.1, workers=8, steps=80, schedule="async", cost=cost(service=0.25)
    ).records
    last = [r for r in records if isinstance(r, Step)][-8:]
    assert [r.waiting + r.communication for r in last] == pytest.approx([1.0] * 8)


def test_a_fragment_occupies_the_shards_that_it_lies_on():
    assert shard_work(cost(service=0.8, shards=2), 0, 4, 8) == {0: pytest.approx(0.4)}
    assert shard_work(cost(service=0.8, shards=2), 2, 6, 8) == {0: pytest.approx(0.2), 1: pytest.approx(0.2)}
    assert shard_work(cost(service=0.8, shards=4), 0, 1, 1) == {k: pytest.approx(0.2) for k in range(4)}


def test_a_queue_by_hand():
    """Shard 0 is free at 3, shard 1 at 1: a message for both at 0.5 has waited 2.5 s when the later one serves it."""
    queue = Queue(2)
    assert queue.enter(0.0, {0: 3.0, 1: 1.0}) == (3.0, 0.0)
    assert queue.enter(0.5, {0: 1.0, 1: 1.0}) == (4.0, 2.5)
    assert queue.enter(0.5, {1: 1.0}) == (3.0, 1.5)


@pytest.mark.parametrize(("name", "value"), [("shards", 0), ("shards", 1.5), ("request", -1.0)])
def test_bad_costs(name, value):
    with pytest.raises(SettingError, match=name):
        easgd.CostModel(**{name: value})
