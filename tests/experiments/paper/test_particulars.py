"""What a run's name says besides p, τ and η."""

from __future__ import annotations

import pytest

from easgd.experiments.paper.particulars import particulars
from easgd.training.config import Config


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "eamsgd"}, []),
        ({"method": "eamsgd", "momentum": 0.99}, []),
        ({"method": "easgd"}, []),
        ({"method": "eamsgd", "moving_rate": 0.225, "momentum": 0.995}, ["α = 0.225", "δ = 0.995"]),
        ({"method": "msgd", "decay": "sqrt", "gamma": 0.001, "warmup": 20}, ["warm-up of 20 steps", "γ = 0.001"]),
        ({"method": "msgd", "drop": 3000}, ["η/10 after 3000 steps"]),
        ({"method": "eamsgd", "start": "apart", "compression": "int8"}, ["int8", "workers start apart"]),
        ({"method": "admm", "rho": 2.5, "decay": "stagnation"}, ["ρ = 2.5", "decay at stagnation"]),
    ],
)
def test_only_what_differs_from_the_methods_own_is_named(settings, words):
    config = Config(engine="simulate", data="cifar10", **settings).resolved()
    assert particulars(config) == words
