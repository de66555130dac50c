"""One stretch of the center: fused loops against the methods' own functions, refusals, rounds, the average."""

from __future__ import annotations

import math

import pytest
import torch

import easgd
from easgd.center.fused_rules import fused_exchange
from easgd.center.state import CenterState

METHODS = {
    "elastic": easgd.EASGD(period=1, moving_rate=0.3),
    "averaged": easgd.averaged(easgd.EASGD(period=1, moving_rate=0.3)),
    "downpour": easgd.Downpour(),
    "mvadownpour": easgd.MVADownpour(rate=0.1),
    "mdownpour": easgd.MDownpour(momentum=0.9),
    "admm": easgd.ADMM(1.0),
}


def made(method, x, **settings):
    return CenterState(method, method.center_slots(x), **settings)


@pytest.mark.parametrize("name", METHODS)
def test_fused_and_plain_exchanges_give_the_same_numbers(name):
    method, x = METHODS[name], torch.linspace(-3, 2, 999)
    fused, plain = made(method, x), made(method, x, fused=False)
    for seed in range(5):
        message = torch.randn(999, generator=torch.Generator().manual_seed(seed))
        ours, theirs = fused.exchange(message.clone(), 0.3), plain.exchange(message.clone(), 0.3)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        for slot in fused.slots:
            torch.testing.assert_close(fused.slots[slot], plain.slots[slot], rtol=1e-6, atol=1e-6)
        elastic = name in ("elastic", "averaged")
        assert (fused.update_sqnorm is not None) == (plain.update_sqnorm is not None) == elastic
        if elastic:
            assert fused.update_sqnorm == pytest.approx(plain.update_sqnorm, rel=1e-5)
    assert fused.version == plain.version == 5
    if name == "elastic":
        assert all(torch.equal(fused.slots[slot], plain.slots[slot]) for slot in fused.slots)


@pytest.mark.parametrize("name", ["elastic", "averaged"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_fused_loop_keeps_non_finite_elements_out(name, poison):
    state = made(METHODS[name], torch.zeros(3000))
    message = torch.ones(3000)
    message[[3, 2070]] = poison
    assert not math.isfinite(state.apply_array_(message.numpy(), 0.5))
    assert all(slot.isfinite().all() for slot in state.slots.values())
    assert state.x[3] == 0
    assert state.x[4] == message[4] == 0.5


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_a_message_that_is_not_finite_is_refused(name, poison, fused):
    state = made(METHODS[name], torch.ones(7), fused=fused)
    bad = torch.ones(7)
    bad[5] = poison
    assert state.exchange(bad.clone(), 0.5) is None
    assert not state.push(bad.clone(), 0.5)
    assert state.exchange_all([bad.clone(), None], [0.5, 0.5])[0] is None
    assert state.x.tolist() == [1.0] * 7
    assert state.version == 0


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused(scale):
    """rho·lr with lr = NaN: the message is sound, what it would make of the center is not."""
    state = made(easgd.EASGD(rho=1.0), torch.ones(3))
    assert state.exchange(torch.full((3,), 2.0), scale) is None
    assert state.exchange_all([torch.full((3,), 2.0)], [scale]) == [None]
    assert state.x.tolist() == [1.0] * 3


class Half(easgd.EASGD):
    def propose(self, center, message, scale):
        return 0.5 * super().propose(center, message, scale)


class Counting(easgd.EASGD):
    """Overrides the update alone: what is proposed and absorbed stays the method's."""

    def update_(self, center, d, version):
        super().update_(center, d, version)
        center["x"] += 100 * (version + 1)


class Damped(easgd.Downpour):
    def absorb_(self, center, d):
        center["x"] += 0.5 * d


@pytest.mark.parametrize(
    ("method", "message", "center"),
    [
        (Half(moving_rate=0.4), 0.2, 0.2),
        (Counting(moving_rate=0.5), 0.5, 100.5),
        (Damped(), 0.5, 0.5),
    ],
)
def test_a_users_own_rule_is_not_replaced_by_a_fused_one(method, message, center):
    """x = 1, x̃ = 0: whichever of the three functions a method overrides is the one that runs."""
    state = made(method, torch.zeros(10))
    assert fused_exchange(method, state.slots) is None
    sent = torch.ones(10)
    state.apply_array_(sent.numpy(), method.scale(0.1, 1, 1))
    torch.testing.assert_close(sent, torch.full((10,), message))
    torch.testing.assert_close(state.x, torch.full((10,), center))


def test_a_round_is_equations_3_and_4_by_hand():
    """x = 8, 4 and a worker without a message, x̃ = 0, α = 1/4: d = 2 and 1, x̃ = 3."""
    state = made(easgd.EASGD(moving_rate=0.25), torch.zeros(2))
    answers = state.exchange_all([torch.full((2,), 8.0), torch.full((2,), 4.0), None], [0.25] * 3)
    assert [a.tolist() for a in answers] == [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0]]
    assert state.x.tolist() == [3.0, 3.0]
    assert state.version == 1


def test_the_average_may_begin_anew():
    """x̃ = 0, 1, 2, then anew at 3: z is the mean of what comes from there on."""
    state = made(easgd.averaged(easgd.Downpour()), torch.zeros(1))
    for _ in range(3):
        state.push(torch.ones(1), 1.0)
    assert state.average.item() == 1.0, "(0 + 1 + 2)/3"
    state.begin_average()
    assert state.average.item() == 3.0
    for _ in range(2):
        state.push(torch.ones(1), 1.0)
    assert state.average.item() == 3.5, "(3 + 4)/2"
    again = made(easgd.averaged(easgd.Downpour()), state.x)
    again.average.copy_(state.average)
    again.set_clock(state.clock)
    again.push(torch.ones(1), 1.0)
    assert again.average.item() == 4.0, "(3 + 4 + 5)/3, also after a resume"


def test_a_round_that_is_cut_short_is_never_absorbed_twice(monkeypatch):
    """Case 2: whoever is killed while it absorbs a sum has given it up before; the next one finds none."""
    method = easgd.EASGD(moving_rate=0.5, sync=True)
    state = CenterState(method, method.center_slots(torch.zeros(3)))
    state.add_to_round(torch.ones(3))

    def killed(d):
        state.x.add_(d)  # the change is made, and not counted
        raise InterruptedError

    monkeypatch.setattr(state, "_update", killed)
    with pytest.raises(InterruptedError):
        state.end_round()
    monkeypatch.undo()
    state.end_round()
    assert state.x.tolist() == [1.0] * 3
