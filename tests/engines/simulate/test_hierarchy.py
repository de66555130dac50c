"""Machines with a center each, on the virtual clock: the spring twice."""

import pytest
import torch

import easgd
from easgd.errors import SettingError
from easgd.records import Event, Step

ONE = torch.ones(1, dtype=torch.float64)
EXACT = easgd.CostModel(compute=1.0, jitter=0.0)


def half_square(x, worker, step):
    return x


def simulation(workers, machines, method=None, gradient=half_square, **settings):
    records = []
    settings = {"lr": 0.1, "schedule": "async", "cost": EXACT, **settings}
    sim = easgd.Simulation(
        gradient, settings.pop("x0", ONE), method or easgd.EASGD(period=1, moving_rate=0.5), workers=workers,
        machines=machines, on_record=records.append, **settings,
    )  # fmt: skip
    return sim, records


def of(records, kind):
    return [r for r in records if isinstance(r, Event) and r.event == kind]


def test_two_steps_by_hand():
    """α = ½ on both levels, η = 0.1, gradient x; every exchange takes no time.

    First step: xⁱ = 0.9 for both. x_m = 1 + ½(0.9 − 1) = 0.95 for both. Run: D₀ = ½(0.95 − 1) = −0.025, x̃ = 0.975;
    D₁ = ½(0.95 − 0.975) = −0.0125, x̃ = 0.9625. Then x_m = 0.975 and 0.9625.
    Second step: xⁱ = 0.9 − 0.09 + 0.05 = 0.86. x_m = 0.975 − 0.0575 = 0.9175 and 0.9625 − 0.05125 = 0.91125.
    Run: D₀ = −0.0225, x̃ = 0.94; D₁ = ½(0.91125 − 0.94) = −0.014375, x̃ = 0.925625.
    """
    sim, _ = simulation(2, easgd.Machines(2))
    sim.run(3)  # the third tick begins when everything of the first step has happened
    assert float(sim.center.x) == pytest.approx(0.9625, abs=1e-15)
    assert [float(m.center.x) for m in sim.levels.machines] == pytest.approx([0.975, 0.9625], abs=1e-15)
    sim.run(2)
    assert float(sim.center.x) == pytest.approx(0.925625, abs=1e-15)
    machines = [0.9175 + 0.0225, 0.91125 + 0.014375]
    assert [float(m.center.x) for m in sim.levels.machines] == pytest.approx(machines, abs=1e-15)


def test_the_springs_keep_the_sum():
    """What one end of a spring loses the other gains: without gradients Σxⁱ + Σx_m + x̃ stays what it was."""
    sim, _ = simulation(
        4, easgd.Machines(2), easgd.EASGD(period=2, beta=0.9), gradient=lambda x, worker, step: torch.zeros_like(x),
        cost=easgd.CostModel(jitter=0.2, latency=0.3),
    )  # fmt: skip
    for rank, worker in enumerate(sim.workers):
        worker.state.replica.params[0].data.fill_(float(rank))
    sim.run(400)
    values = [float(w.state.local()) for w in sim.workers] + [float(m.center.x) for m in sim.levels.machines]
    # Under way, at most one d of each worker and one D of each machine: all are close to each other by now.
    assert sum(values) + float(sim.center.x) == pytest.approx(0 + 1 + 2 + 3 + 2 * 1 + 1, abs=1e-3)
    assert max(values) - min(values) < 1e-3


@pytest.mark.parametrize("each", [1, 4])
def test_bytes_between_machines_do_not_grow_with_the_workers_of_a_machine(each):
    """100 steps, τ = 5: 20 exchanges of every worker; with T = 2 each of 3 machines makes 10, of 2 · 8 bytes."""
    sim, records = simulation(3 * each, easgd.Machines(3, period=2), easgd.EASGD(period=5, beta=0.5))
    sim.run(3 * each * 100)
    assert len(of(records, "machine")) == 30
    assert all(event.detail.endswith(", 16 bytes") for event in of(records, "machine"))
    assert not any(r.bytes for r in records if isinstance(r, Step))


def test_each_level_has_the_moving_rate_of_its_children():
    faults = [easgd.Fault(worker=0, time=1.5, what="death"), easgd.Fault(worker=3, time=1.5, what="death")]
    sim, _ = simulation(6, easgd.Machines(3), easgd.EASGD(period=1, beta=0.9), faults=faults)
    sim.run(6)
    assert sim.scale(sim.workers[0]) == pytest.approx(0.9 / 2)
    assert sim.levels.scale(1) == pytest.approx(0.9 / 3)
    sim.run(6)  # machine 0 had workers 0 and 3
    assert sim.levels.scale(1) == pytest.approx(0.9 / 2)
    assert sim.scale(sim.workers[1]) == pytest.approx(0.9 / 2)


def test_a_lost_machine_makes_nobody_wait_and_starts_anew_from_the_runs_center():
    """The link takes 0.4 s, so that machine 1's second exchange is under way when it is lost at 1.2 s."""
    lost = [easgd.Fault(worker=1, time=1.2, what="death"), easgd.Fault(worker=1, time=6.05, what="join")]
    cost = easgd.CostModel(compute=1.0, jitter=0.0, latency=0.4)
    sim, records = simulation(2, easgd.Machines(2), faults=lost, cost=cost)
    sim.run(2 + 5)  # the last of worker 0 at 6 s; machine 0's message from then arrives at 6.4 s
    center = float(sim.center.x)
    assert sim.time == 6.0
    sim.run(1)
    assert of(records, "join")[0].time == 6.05
    assert float(sim.workers[1].state.local()) == center < 1.0
    mine = [r for r in records if isinstance(r, Step) and r.worker == 0]
    assert [r.time for r in mine] == [float(k + 1) for k in range(len(mine))]
    assert not any(r.waiting or r.communication for r in mine)
    # Its message arrived; the answer found nobody.
    assert sum("machine 1," in event.detail and event.time < 6 for event in of(records, "machine")) == 2
    sim.run(10)
    assert sim.levels.machines[1].incarnation == 1
    assert sum("machine 1," in event.detail for event in of(records, "machine")) > 3


@pytest.mark.parametrize("compression", [None, "int8"])
def test_a_saved_run_goes_on_with_the_same_bits(tmp_path, compression):
    def make():
        return simulation(
            6, easgd.Machines(2, period=2, latency=0.05, service=0.01), easgd.EASGD(period=2, beta=0.9),
            gradient=lambda x, worker, step: x + worker + step % 3, x0=torch.linspace(-1, 1, 8),
            compression=compression,
            cost=easgd.CostModel(jitter=0.2, latency=0.7, service=0.3, shards=2),
        )[0]  # fmt: skip

    whole, first, second = make(), make(), make()
    whole.run(200)
    first.run(77)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    second.run(123)
    assert torch.equal(second.center.x, whole.center.x)
    assert second.time == whole.time
    for mine, theirs in zip(second.levels.machines, whole.levels.machines, strict=True):
        assert torch.equal(mine.center.x, theirs.center.x)


def test_machines_relieve_a_saturated_center():
    """64 workers ask 64 times a second, 0.1 s of service allow 10: 10 steps a second; with 8 machines all 64."""

    def rate(machines):
        cost = easgd.CostModel(compute=1.0, jitter=0.0, service=0.1)
        sim, _ = simulation(64, machines, easgd.EASGD(period=1, beta=0.9), cost=cost, guard=0)
        sim.run(640)
        before = sim.time
        sim.run(640)
        return 640 / (sim.time - before)

    assert rate(None) == pytest.approx(10, rel=0.02)
    assert rate(easgd.Machines(8)) == pytest.approx(64, rel=0.02)


def test_a_thousand_workers():
    """40 machines of 25, 4 shards; each machine once a second: 40 × 0.05 s of service in 4 shards, half their time."""
    cost = easgd.CostModel(compute=0.1, jitter=0.1, latency=1e-3, service=0.05, shards=4)
    sim, records = simulation(1000, easgd.Machines(40), easgd.EASGD(period=10), cost=cost, guard=0)
    sim.run(10_000)
    rate = sim.ticks / sim.time
    assert rate == pytest.approx(1000 / 0.1, rel=0.1)
    assert len(of(records, "machine")) == pytest.approx(40, abs=2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": easgd.Downpour()}, "tied by a spring"),
        ({"method": easgd.EASGD(sync=True), "schedule": "sync"}, "tied by a spring"),
        ({"method": easgd.EASGD(rho=1.0)}, "no learning rate"),
        ({"method": easgd.EASGD(period=2, fragments=2), "x0": torch.ones(4)}, "whole vector"),
        ({"schedule": "round-robin"}, "as they come"),
        ({"workers": 1}, "every machine has a worker"),
    ],
)
def test_what_cannot_be_is_refused(settings, says):
    with pytest.raises(SettingError, match=says):
        simulation(**{"workers": 4, "machines": easgd.Machines(2), **settings})


@pytest.mark.parametrize("settings", [{"count": 0}, {"count": 2, "period": 0}, {"count": 2, "service": -1.0}])
def test_bad_machines(settings):
    with pytest.raises(SettingError):
        easgd.Machines(**settings)
