"""Advice and the check at the start of a run."""

import math

import pytest

from easgd.theory import advise, check, communication_share, largest_curvature, quiet_period, spring, stable_curvature


def test_spring_under_its_three_names():
    # p = 16, η = 0.01: β = 0.9 is α = 0.05625 is ρ = 5.625, whatever the period
    one = spring(16, 0.01, beta=0.9)
    assert (one.moving_rate, one.beta, one.rho, one.given) == (0.05625, 0.9, 5.625, "beta")
    assert spring(16, 0.01, moving_rate=0.05625).rho == pytest.approx(5.625)
    assert spring(16, 0.01, rho=5.625).beta == pytest.approx(0.9)
    assert spring(16, 0.01).given == "default beta"


def test_shares_of_time():
    # 10 steps of 0.1 s and an exchange of 0.25 s: 0.25/1.25; behind the next step 0.15 s are felt: 0.15/1.15
    share = communication_share(10, 0.1, 0.25)
    assert share.waiting == pytest.approx(0.2)
    assert share.hidden == pytest.approx(0.15 / 1.15)
    assert communication_share(1, 0.1, 0.05).hidden == 0.0
    # X/(τs + X) < 1 % ⇔ τ > 99·X/s
    assert quiet_period(0.1, 0.1) == 100
    assert quiet_period(1.0, 0.0) == 1
    tau = quiet_period(0.037, 0.211)
    assert communication_share(tau, 0.037, 0.211).waiting < 0.01 <= communication_share(tau - 1, 0.037, 0.211).waiting


def test_advice_without_curvature_gives_the_largest():
    advice = advise(16, 0.01, 10)
    assert advice.stable is None
    assert advice.largest_curvature == pytest.approx(
        stable_curvature("easgd", 16, 0.01, period=10, moving_rate=0.05625)
    )
    assert set(advice.variance) == {0.01, 0.1, 1.0}
    assert all(0 < ratio < 1 for ratio in advice.variance.values())
    assert advice.shares == []
    # 4(1 − α)/(2 − α) at α = 0.9/16, divided by η: each turn contracts, so any order of the workers does
    assert advice.any_order_curvature == pytest.approx(400 * (1 - 0.05625) / (2 - 0.05625))


def test_advice_with_curvature():
    inside = advise(16, 0.01, 10, momentum=0.99, curvature=50.0, step_time=0.1, exchange_time=0.05)
    assert inside.stable
    assert inside.method == "eamsgd"
    assert inside.quiet_period == 50
    assert inside.largest_lr == pytest.approx(inside.largest_curvature * 0.01 / 50)
    outside = advise(16, 0.01, 10, curvature=250.0)
    assert outside.stable is False
    assert outside.radius > 1
    assert list(outside.variance.values()) == [math.inf]


def test_many_workers_use_the_synchronous_map():
    advice = advise(1000, 0.01, 10, curvature=1.0)
    assert advice.schedule == "sync"
    assert advice.stable


def test_check_is_silent_inside_and_speaks_outside():
    inside = {"lr": 0.01, "workers": 4, "period": 10, "moving_rate": 0.2}
    assert check("EASGD", curvature=10.0, **inside) == []
    assert check("EASGD", **inside) == []
    (warning,) = check("EASGD", curvature=300.0, **inside)
    assert "lr = 0.01" in warning
    assert "unstable at curvature h = 300" in warning
    assert "use lr below 0.006599" in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("method", "settings", "bad"),
    [
        ("DOWNPOUR", {"lr": 0.05, "workers": 4, "period": 64, "curvature": 10.0}, True),
        ("DOWNPOUR", {"lr": 0.0005, "workers": 4, "period": 1, "curvature": 10.0}, False),
        ("MDOWNPOUR", {"lr": 0.01, "workers": 8, "momentum": 0.99, "curvature": 10.0}, True),
        ("EAMSGD", {"lr": 0.01, "workers": 4, "period": 10, "momentum": 0.99, "moving_rate": 0.2}, False),
        ("ADMM", {"lr": 0.001, "workers": 3, "rho": 2.5, "curvature": 1.0}, True),
        ("EASGD", {"lr": 0.1, "workers": 4, "moving_rate": 1.5}, True),
        ("EASGD", {"lr": 0.1, "workers": 4, "moving_rate": 0.6, "schedule": "sync"}, True),  # β = 2.4
        ("SGD", {"lr": 0.1, "workers": 4, "curvature": 30.0}, True),
        ("MVADOWNPOUR", {"lr": 0.01, "workers": 300, "period": 10, "curvature": 10.0, "schedule": "async"}, True),
        ("LocalSGD", {"lr": 100.0}, False),  # not ours to judge
        ("EASGD", {"lr": 0.0, "workers": 4}, False),
    ],
)
def test_check_knows_every_method(method, settings, bad):
    assert bool(check(method, **settings)) == bad


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": -3, "lr": 0.1}, "workers = -3"),
        ({"workers": 3, "lr": 0.0}, "lr = 0.0"),
        ({"workers": 3, "lr": 0.1, "beta": 0.9, "rho": 1.0}, "give one of them"),
        ({"workers": 3, "lr": 0.1, "momentum": 1.0}, "momentum = 1.0"),
        ({"workers": 3, "lr": 0.1, "step_time": 1.0}, "go together"),
        ({"workers": 3, "lr": 0.1, "curvature": -2.0}, "curvature = -2.0"),
    ],
)
def test_bad_input_is_one_clear_line(settings, words):
    with pytest.raises(ValueError, match=words) as error:
        advise(**settings)
    assert "\n" not in str(error.value)


def test_measured_curvature_feeds_the_check():
    import torch

    model = torch.nn.Linear(2, 1, bias=False)
    h = largest_curvature(model, lambda m: 50 * m.weight.square().sum()).value
    assert h == pytest.approx(100.0, rel=1e-5)
    assert check("SGD", lr=0.03, curvature=h) != []
    assert check("SGD", lr=0.015, curvature=h) == []
