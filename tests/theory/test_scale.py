"""How far a run scales: by hand, and against the simulator's clock."""

import pytest
import torch

import easgd
from easgd.errors import SettingError
from easgd.theory import Cluster, Scale, Service, scale
from easgd.theory.waiting import BUSY, QUIET

SLOW = Service(request=0.01, rate=1e9)


def cluster(**settings):
    """1 M parameters: messages of 4 MB; a link of 100 MB/s."""
    given = {"workers": 8, "machines": 8, "parameters": 1_000_000, "step_time": 0.5, "link": 1e8, "shard": SLOW}
    return Cluster(**{**given, **settings})


def test_one_exchange_by_hand():
    """Two ways of 40 ms and 1 ms; two shards: 10 ms a request and 2 · 2 MB at 1 GB/s. A link: 2 MB + 0.5 MB."""
    c = cluster(latency=1e-3)
    assert c.processor_time(2) == pytest.approx(0.01 + 4e-3)
    assert c.link_time(2) == pytest.approx(2.5e6 / 1e8)
    assert c.exchange_time(2) == pytest.approx(0.082 + 0.014)


def test_busy_and_saturation_by_hand():
    """8 workers, τ = 4 steps of 0.5 s: 4 exchanges a second, each 25 ms of a link: a tenth. Saturated by 80 workers."""
    run = Scale(cluster(), levels=False, shards=2, period=4, upward=1)
    assert (run.exchanges, run.bottleneck) == (4.0, "link")
    assert run.busy == pytest.approx(0.1)
    assert run.most_workers == 80
    assert run.network_bytes == pytest.approx(2 * 4e6 * 4 / 8)


def test_levels_by_hand():
    """32 workers on 8 machines, τ = 4, T = 2: 8/(2 · 4 · 0.5) = 2 exchanges a second, whatever each machine has."""
    for workers in (8, 32, 128):
        run = Scale(cluster(workers=workers), levels=True, shards=2, period=4, upward=2)
        assert run.exchanges == 2.0
        assert run.network_bytes == pytest.approx(2 * 4e6 * 2 / 8)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("workers", [8, 64, 512])
@pytest.mark.parametrize("parameters", [10_000, 9_000_000, 1_000_000_000])
def test_what_is_advised_is_quiet(levels, workers, parameters):
    run = scale(cluster(workers=workers, parameters=parameters), levels=levels)
    assert run.waiting < QUIET
    assert run.busy <= BUSY * (1 + 1e-6)


def test_more_shards_are_taken_only_where_they_shorten_the_period():
    """A request of 10 ms is the same on every shard: for a small vector one shard does."""
    assert scale(cluster(workers=64, parameters=10_000), levels=False).shards == 1
    assert scale(cluster(workers=64), levels=False, delay=2).shards == 8
    assert scale(cluster(workers=64), levels=False, period=1).shards == 8  # saturated: the least of all evils
    assert scale(cluster(workers=8), levels=False, period=1000).shards == 1


@pytest.mark.parametrize("period", [1, 2, 8])
def test_the_simulator_saturates_where_the_arithmetic_says(period):
    """20 workers, 0.5 s a step, 1 shard of 0.1 s an exchange: 40 steps a second, or 10 τ where that is less."""
    given = cluster(workers=20, machines=20, link=1e15, shard=Service(request=0.02, rate=1e8))
    expected = Scale(given, levels=False, shards=1, period=period, upward=1)
    assert expected.busy == pytest.approx(40 / (10 * period))
    cost = easgd.CostModel(compute=0.5, jitter=0.0, request=0.02, service=0.08)
    sim = easgd.Simulation(
        lambda x, worker, step: torch.zeros_like(x), torch.ones(1), easgd.EASGD(period=period), lr=0.1, workers=20,
        schedule="async", cost=cost, guard=0,
    )  # fmt: skip
    sim.run(20 * 2 * period)
    before = sim.time
    sim.run(20 * 4 * period)
    assert 20 * 4 * period / (sim.time - before) == pytest.approx(expected.speed, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"machines": 9}, "machines = 9"), ({"link": 0.0}, "link"), ({"parameters": 0}, "parameters")],
)
def test_bad_clusters(settings, says):
    with pytest.raises(SettingError, match=says):
        cluster(**settings)


@pytest.mark.parametrize("name", ["one shard", "8 shards", "a center per machine, 8 shards"])
def test_the_figures_dots_lie_on_its_lines(name):
    """128 workers: 16 machines whose links are the bottleneck; one shard is saturated several times over."""
    from easgd.experiments.theory.scale import simulated, way

    run = way(name, 128)
    assert (run.busy > 1) == (name == "one shard")
    assert simulated(run, periods=1) == pytest.approx(run.speed, rel=0.03)
