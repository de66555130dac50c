"""Training with a rate that changes: warm-up, drop, decay, and what a scheduler is told."""

from __future__ import annotations

import pytest
import torch

import easgd

SMALL = {"engine": "simulate", "network": "digits-mlp", "workers": 3, "steps": 60, "train_subset": 200}


def test_a_warm_up_begins_with_small_steps(tmp_path):
    """After one step of one worker x has moved by η/N times the gradient, a hundredth of what it moves without."""
    settings = {**SMALL, "method": "sgd", "workers": 1, "steps": 1, "weight_decay": 0.0}
    start, whole, warm = (
        easgd.train({**settings, **more}, tmp_path / name).center["layers.1.weight"]
        for name, more in (("start", {"lr": 1e-12}), ("whole", {}), ("warm", {"warmup": 100}))
    )
    torch.testing.assert_close(100 * (warm - start), whole - start, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"decay": "stagnation", "warmup": 5}, r"warmup = 5: with the decay stagnation .* leave one out"),
        ({"decay": "stagnation", "drop": 5}, r"drop = 5: with the decay stagnation .* leave one out"),
        ({"warmup": 20, "drop": 10}, r"drop = 10: the rate falls after its warm-up of 20 steps; write drop=40"),
        ({"drop": 0}, r"drop = 0: .*"),
    ],
)
def test_changes_of_the_rate_that_contradict_each_other_are_refused(settings, why):
    with pytest.raises(ValueError, match=why):
        easgd.Config(**settings).resolved()


def test_a_run_whose_rate_changes_says_so(tmp_path):
    assert easgd.Config(warmup=10, lr=0.1).shown_rate == "η = 0.1 after 10 steps"
    assert easgd.Config(drop=50, lr=0.1).shown_rate == "η = 0.1, a tenth of it after 50 steps"
    easgd.train({**SMALL, "steps": 20, "warmup": 10, "workers": 2, "engine": "local", "lr": 0.1}, tmp_path / "a")
    joins = [record for record in easgd.Run(tmp_path / "a").records() if getattr(record, "event", "") == "join"]
    assert [join.attached.lr for join in joins] == [0.1, 0.1], "not that of the first step"


@pytest.mark.parametrize(
    "changes",
    [{"decay": "sqrt", "gamma": 0.1}, {"decay": "stagnation"}, {"warmup": 100}, {"drop": 40}, {"drop": 100}],
    ids=str,
)
def test_a_changing_rate_survives_a_resume(tmp_path, changes):
    settings = {**SMALL, "method": "eamsgd", "checkpoint_every": 0.01, **changes}
    easgd.train({**settings, "steps": 150}, tmp_path / "whole")
    easgd.train({**settings, "steps": 70, "evaluate_every": 100.0}, tmp_path / "part")
    easgd.resume(tmp_path / "part", steps=150)
    assert (tmp_path / "part" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    if "stagnation" in changes.values():
        return  # digits do not stagnate within 150 steps; that the rate drops is tested by hand below
    same = {"decay": "constant", "warmup": 0, "drop": None}
    constant = easgd.train({**settings, "steps": 150, **same}, tmp_path / "constant")
    assert not torch.equal(constant.center["layers.1.weight"], easgd.Run(tmp_path / "whole").center["layers.1.weight"])


def test_a_scheduler_of_the_users_may_observe_the_loss_and_have_no_drops():
    seen = []

    class Mine(torch.optim.lr_scheduler.ConstantLR):
        def observe(self, loss):
            seen.append(loss)

    gradient = lambda x, worker, step: x  # noqa: E731
    gradient.losses = {0: 0.5}
    sim = easgd.Simulation(gradient, torch.ones(1), easgd.ASGD(), lr=0.1, workers=1, scheduler=Mine)
    sim.run(3)
    assert seen == [0.5] * 3


def test_the_mean_of_asgd_begins_where_the_rate_drops_first():
    """F = 0 with x moved by hand: x̃ runs 1, 2, 3, …; losses stagnate in the second window of two steps."""
    x0, means = torch.zeros(1), []
    gradient = lambda x, worker, step: torch.full_like(x, -1.0)  # noqa: E731
    gradient.losses = {0: 1.0}
    sim = easgd.Simulation(
        gradient, x0, easgd.ASGD(), lr=1.0, workers=1,
        scheduler=lambda optimizer: easgd.Stagnation(optimizer, window=2),
    )  # fmt: skip
    for _ in range(7):
        sim.run(1)
        means.append(round(float(sim.center.measured), 4))
    # z_{t+1} takes x̃_t in: 0; (0+1)/2; (0+1+2)/3. In the fourth step the loss has not fallen: the mean begins anew
    # after it, at x̃_4 = 4, and from the fifth on the rate is 1/5: x̃_5 = 4.2, x̃_6 = 4.4.
    assert means == [0.0, 0.5, 1.0, 4.0, 4.0, 4.1, 4.2]
