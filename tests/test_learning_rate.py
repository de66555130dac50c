"""The schedules of the rate, by hand."""

from __future__ import annotations

import pytest
import torch

import easgd
from easgd.learning_rate import full_rate


def test_stagnation_divides_by_five_and_then_by_two():
    """Windows of two steps: means 2, 1, 1, 0.5, 0.5, 0.5 stagnate at the third, the fifth and, in vain, the sixth."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = easgd.Stagnation(optimizer, window=2)
    rates = []
    for loss in (3, 1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5):
        optimizer.step()
        scheduler.observe(float(loss))
        scheduler.step()
        rates.append(round(optimizer.param_groups[0]["lr"], 6))
    assert rates == [1, 1, 1, 1, 1, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1]


def test_a_warm_up_rises_in_equal_steps_and_meets_the_decay():
    """Four steps to η = 1, then 1/√(1 + 3t): t = 4 and 5 give 1/√13 and 1/4."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    alone = torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(0.0, warmup=4))
    assert [alone.lr_lambdas[0](t) for t in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    both = [easgd.decay(3.0, warmup=4)(t) for t in range(6)]
    assert both == pytest.approx([0.25, 0.5 / 2, 0.75 / 7**0.5, 1 / 10**0.5, 1 / 13**0.5, 1 / 4])


def test_a_drop_leaves_a_tenth_of_the_rate():
    """The third step, t = 2, is the first at a tenth; with γ = 3, a tenth of 1/√(1 + 3t)."""
    assert [easgd.decay(0.0, drop=2)(t) for t in range(4)] == [1, 1, 0.1, 0.1]
    assert [easgd.decay(3.0, drop=1)(t) for t in range(2)] == pytest.approx([1, 0.1 / 2])
    assert [easgd.decay(0.0, warmup=2, drop=3)(t) for t in range(4)] == [0.5, 1, 1, 0.1]


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, easgd.decay(0.0, warmup=100)),
        lambda opt: torch.optim.lr_scheduler.LinearLR(opt, start_factor=1e-3, total_iters=100),
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=100),
    ],
)
def test_the_rate_of_a_worker_is_the_one_that_its_warm_up_comes_to(scheduler):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    scheduler(optimizer)
    assert optimizer.param_groups[0]["lr"] < 0.01
    assert full_rate(optimizer) == 0.1
