"""The time that exchanges cost, and the period that follows from it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.theory import communication_share, delay_for, period_for, quiet_period


def test_shares_by_hand():
    # an exchange of 0.25 s, steps of 0.1 s: one step hides 0.1 s, two 0.2 s, three all of it
    felt = [communication_share(10, 0.1, 0.25, delay=k).hidden for k in (1, 2, 3)]
    assert felt == pytest.approx([0.15 / 1.15, 0.05 / 1.05, 0.0])
    # in two parts of 0.125 s, each behind a step of its own: 2 · 0.025 s are left
    assert communication_share(10, 0.1, 0.25, fragments=2).hidden == pytest.approx(0.05 / 1.05)
    # 4 parts behind 3 steps each would hide 1.2 s, but a period of 0.4 s has room for 0.4 s of the 0.5
    assert communication_share(4, 0.1, 0.5, delay=3, fragments=4).hidden == pytest.approx(0.1 / 0.5)


def test_the_period_by_hand():
    assert period_for(0.1, 0.05) == 1  # hidden
    assert period_for(0.1, 0.05, hidden=False) == quiet_period(0.1, 0.05) == 50  # 0.05/(5 + 0.05) < 1 %
    assert period_for(0.1, 0.2) == 100  # 0.1 s is felt: 0.1/(τ·0.1 + 0.1) < 1 %
    assert period_for(0.1, 0.2, delay=2) == 3  # longer than the delay
    assert period_for(0.1, 0.2, fragments=4) == 4
    # 16 workers occupy the center for 0.02 s each: 0.32 s in a period of at least 0.64 s
    assert period_for(0.1, 0.05, workers=16, center_time=0.02) == 7
    assert period_for(0.1, 1e9) == 1 << 20


def test_the_delay_hides_the_exchange_and_one_step_less_does_not():
    for exchange, fragments in [(0.05, 1), (0.1, 1), (0.31, 1), (0.35, 4), (2.0, 4)]:
        k = delay_for(0.1, exchange, fragments=fragments)
        assert communication_share(1000, 0.1, exchange, k, fragments).hidden == 0
        assert k == 1 or communication_share(1000, 0.1, exchange, k - 1, fragments).hidden > 0


@settings(max_examples=300, deadline=None)
@given(
    ratio=st.floats(1e-3, 1e3),
    delay=st.integers(1, 12),
    fragments=st.integers(1, 9),
    hidden=st.booleans(),
    workers=st.integers(1, 64),
    busy=st.floats(0, 2),
)
def test_the_period_is_the_shortest_that_is_quiet(ratio, delay, fragments, hidden, workers, busy):
    def quiet(tau):
        share = communication_share(tau, 0.01, 0.01 * ratio, delay, fragments)
        return (share.hidden if hidden else share.waiting) < 0.01 and workers * busy <= 0.5 * tau

    tau = period_for(
        0.01, 0.01 * ratio, delay=delay, fragments=fragments, hidden=hidden, workers=workers, center_time=0.01 * busy
    )
    assert quiet(tau) or workers * busy == pytest.approx(0.5 * tau)
    assert tau % fragments == 0
    assert tau > delay or delay == 1
    shorter = tau - fragments
    assert shorter < fragments or (delay > 1 and shorter <= delay) or not quiet(shorter)


def test_an_unstable_period_is_avoided():
    assert period_for(0.1, 0.05, stable=lambda tau: tau >= 3) == 4  # doubled until it is stable
    assert period_for(0.1, 0.2, stable=lambda tau: tau <= 30) == 25  # halved: it waits, but does not diverge
    assert period_for(0.1, 0.2, stable=lambda tau: False) == 100


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: period_for(0.0, 1.0), "step_time = 0"),
        (lambda: period_for(1.0, -1.0), "exchange_time = -1"),
        (lambda: period_for(1.0, 1.0, delay=0), "delay = 0"),
        (lambda: period_for(1.0, 1.0, fragments=0), "fragments = 0"),
        (lambda: period_for(1.0, 1.0, share=0.0), "share = 0"),
        (lambda: period_for(1.0, 1.0, workers=0), "workers = 0"),
        (lambda: period_for(1.0, 1.0, center_time=-2.0), "center_time = -2"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
