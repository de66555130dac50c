"""Fragments and delay on the virtual clock: trajectories worked out by hand, and what they cost."""

import math

import pytest
import torch

import easgd
from easgd.records import Step

ZERO = torch.zeros(2, dtype=torch.float64)
CHEAP = easgd.CostModel(jitter=0)


def down(x, worker, step):
    """A constant gradient of −1: with η = 1 every step adds 1."""
    return -torch.ones_like(x)


def one_worker(method, steps, x0=ZERO, cost=CHEAP, **settings):
    return easgd.simulate(down, x0, method, lr=1.0, workers=1, steps=steps, cost=cost, **settings)


def test_delay_two_by_hand():
    """τ = 4, α = 1/2: at t = 0 d = 0; at t = 4 x = 4, d = 2, x̃ = 2; x −= 2 after step 5; at t = 8 x = 6, d = 2."""
    run = one_worker(easgd.EASGD(period=4, moving_rate=0.5, delay=2), 10)
    assert run.center[:, 0].tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 2, 4, 4]
    assert run.local[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 6]


def test_two_fragments_by_hand():
    """τ = 4, P = 2, α = 1/2: x₀ is exchanged at t = 0, 4, 8, x₁ at t = 2, 6."""
    run = one_worker(easgd.EASGD(period=4, moving_rate=0.5, fragments=2), 9)
    assert run.center[:, 0].tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 2, 4]
    assert run.local[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 5]
    assert run.center[:, 1].tolist() == [0, 0, 0, 1, 1, 1, 1, 3, 3, 3]
    assert run.local[:, 0, 1].tolist() == [0, 1, 2, 2, 3, 4, 5, 4, 5, 6]


def test_two_fragments_with_delay_by_hand():
    """As above, and every answer is used two steps after it was asked for."""
    run = one_worker(easgd.EASGD(period=4, moving_rate=0.5, fragments=2, delay=2), 9)
    assert run.local[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert run.local[:, 0, 1].tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 5, 6]


def test_downpour_waits_fragment_by_fragment():
    """τ = 2, P = 2: each part pushes its own change and pulls; no step before the first exchange is lost."""
    run = one_worker(easgd.Downpour(period=2, fragments=2), 6)
    assert run.center[:, 0].tolist() == [0, 0, 0, 2, 2, 4, 4]
    assert run.center[:, 1].tolist() == [0, 0, 1, 1, 3, 3, 5]
    assert run.local[-1, 0].tolist() == [6, 6]


def test_the_time_average_counts_the_fragments_own_updates():
    """x̃₀ = 0, 1 and x̃₁ = 0, 1 before their updates: z is the mean of each, whatever the other does."""
    run = one_worker(easgd.averaged(easgd.EASGD(period=2, moving_rate=0.5, fragments=2)), 5)
    assert run.center[-1].tolist() == [2.0, 1.5]
    assert run.average[-1].tolist() == [1 / 3, 0.25], "(0 + 0 + 1)/3; (0 + 0.5)/2"


@pytest.mark.parametrize("schedule", ["round-robin", "sync", "async"])
def test_elements_do_not_meet_so_fragments_are_runs_of_their_own(schedule):
    """Fragment 0 of two is the run that exchanges at the same steps; here its first element alone."""

    def pull(x, worker, step):
        return x - worker

    x0, settings = torch.tensor([3.0, -1.0], dtype=torch.float64), {"lr": 0.1, "workers": 3, "cost": CHEAP}
    both = easgd.simulate(
        pull, x0, easgd.EASGD(period=4, beta=0.6, fragments=2, delay=2), steps=60, schedule=schedule, **settings
    )
    first = easgd.simulate(
        pull, x0[:1], easgd.EASGD(period=4, beta=0.6, delay=2), steps=60, schedule=schedule, **settings
    )
    torch.testing.assert_close(both.center[:, :1], first.center, rtol=0, atol=1e-12)
    torch.testing.assert_close(both.local[:, :, :1], first.local, rtol=0, atol=1e-12)


def test_nesterov_looks_ahead_in_every_fragment():
    """EAMSGD with δ and P = 2 on a vector: each half as if it were exchanged alone, at the position behind y."""

    def pull(x, worker, step):
        return x

    x0, settings = torch.tensor([3.0, -1.0], dtype=torch.float64), {"lr": 0.1, "workers": 2, "steps": 40, "cost": CHEAP}
    both = easgd.simulate(pull, x0, easgd.EAMSGD(period=4, moving_rate=0.3, momentum=0.9, fragments=2), **settings)
    first = easgd.simulate(pull, x0[:1], easgd.EAMSGD(period=4, moving_rate=0.3, momentum=0.9), **settings)
    torch.testing.assert_close(both.local[:, :, :1], first.local, rtol=0, atol=1e-12)


def test_a_longer_delay_hides_a_longer_exchange():
    """One second a step, an exchange of 2.5 s every 4 steps: 1.5, 0.5 and 0 s of it are left over."""
    for schedule in ("round-robin", "sync", "async"):
        for delay, left in ((1, 1.5), (2, 0.5), (3, 0.0)):
            cost = easgd.CostModel(jitter=0, latency=1.25)
            run = one_worker(easgd.EASGD(period=4, moving_rate=0.5, delay=delay), 8, cost=cost, schedule=schedule)
            lost = [r.communication + r.waiting for r in run.records if isinstance(r, Step)]
            assert sum(lost) == pytest.approx(2 * left)
            assert run.time[-1] == pytest.approx(8 + 2 * left)


def test_bytes_and_seconds_follow_the_fragment():
    """16 elements of 8 bytes, both ways, at 64 bytes a second: 4 s whole, 1 s a quarter, of which 0.5 stick out."""
    x0, cost = torch.zeros(16, dtype=torch.float64), easgd.CostModel(compute=0.5, jitter=0, bandwidth=64)
    whole = one_worker(easgd.EASGD(period=4, moving_rate=0.5), 8, x0, cost).records
    parts = one_worker(easgd.EASGD(period=4, moving_rate=0.5, fragments=4), 8, x0, cost).records
    assert [r.bytes for r in whole] == [256, 0, 0, 0] * 2
    assert [r.bytes for r in parts] == [64] * 8
    assert max(r.communication for r in whole) == 3.5
    assert max(r.communication for r in parts) == 0.5


def test_staleness_is_the_fragments_own():
    """Two workers in turn: between two exchanges of a fragment the other worker has exchanged it once."""
    run = easgd.simulate(
        down, torch.zeros(4), easgd.EASGD(period=4, moving_rate=0.1, fragments=4), lr=0.1, workers=2, steps=24
    )
    known = [r.staleness for r in run.records if isinstance(r, Step)]
    assert known == [0, 1] * 4 + [1] * 16


def test_a_message_in_flight_survives_its_sender():
    """A worker dies after it has sent: the center takes the message, as with one fragment and delay 1."""
    faults = [easgd.Fault(1, 4.6, "death"), easgd.Fault(1, 9.0, "join")]
    sim = easgd.Simulation(
        down, torch.zeros(4), easgd.EASGD(period=4, moving_rate=0.1, fragments=2, delay=3), lr=1.0, workers=2,
        schedule="async", cost=easgd.CostModel(jitter=0, latency=1.0), faults=faults,
    )  # fmt: skip
    sim.run(30)
    assert sim.center.x.isfinite().all()
    assert sim.workers[1].state.incarnation == 1
    assert all(flight.due >= worker.state.clock for worker in sim.workers for flight in worker.in_flight)


def test_a_reset_drops_what_is_in_flight():
    """An answer that was meant for the old x must not move the new one."""

    def bad(x, worker, step):
        return x * math.nan if (worker, step) == (0, 2) else torch.zeros_like(x)

    sim = easgd.Simulation(
        bad, torch.ones(4), easgd.EASGD(period=4, moving_rate=0.5, fragments=2, delay=3), lr=0.1, workers=1,
        nonfinite="reset",
    )  # fmt: skip
    sim.workers[0].state.replica.write_(torch.full((4,), 3.0))
    sim.run(12)
    x = sim.workers[0].state.local()
    assert x.isfinite().all()
    torch.testing.assert_close(x, sim.center.x)
