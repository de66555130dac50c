"""The three sizes of every experiment.

    smoke    digits and a small network, a few virtual seconds: shows that everything works, proves nothing
    laptop   CIFAR-10 and the paper's 7-layer network, one learning rate per method, shorter virtual times
    paper    the paper's grids of learning rates, three seeds, twenty virtual minutes

`rates` has the learning rates. Budgets depend on method and p, so that recipes share their runs; where a laptop
compares many, `grids` shortens them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from easgd.experiments.paper.rates import CIFAR
from easgd.methods import registry

Group = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """What all recipes of one size have in common."""

    name: str
    words: str
    data: str
    network: str
    seeds: tuple[int, ...]
    seconds: dict[int, float] = field(default_factory=dict)
    """virtual seconds of a run with p workers"""
    short: dict[int, float] = field(default_factory=dict)
    """of methods other than EAMSGD and the sequential ones, where they differ"""
    every: dict[int, float] = field(default_factory=dict)
    """virtual seconds between two evaluations"""
    target: float | None = None
    """a test error that ends a run"""
    photos: str = ""
    """a data set of photographs for the recipes on ImageNet, below paper scale"""

    def common(self) -> Group:
        """Settings of every run on CIFAR-10 (on digits, for smoke)."""
        return {
            "engine": "simulate",
            "data": self.data,
            "network": self.network,
            "cost": "paper-cifar",
            "seed": list(self.seeds),
        }

    def group(self, method: str, workers: int = 1, period: int | None = None, **more: Any) -> Group:
        """One group of runs: a method with its learning rates and its budget."""
        known = registry.get(method)
        sequential = known.sequential
        long = sequential or method == "eamsgd"
        result: Group = {
            "method": method, "lr": CIFAR[self.name][method], "seconds": self.seconds[workers],
            "evaluate_every": self.every[workers],
        }  # fmt: skip
        if not long and workers in self.short:
            result["seconds"] = self.short[workers]
        if self.target is not None:
            result["target"] = self.target
        if not sequential:
            result["workers"] = workers
        if period is not None and known.takes("period"):
            result["period"] = period
        return {**result, **more}


SCALES = {
    "smoke": Scale(
        "smoke",
        "digits, one hidden layer, a few virtual seconds, one seed, one learning rate: a test of the machinery",
        data="digits",
        network="digits-mlp",
        seeds=(0,),
        seconds={1: 6.0, 2: 4.0, 4: 3.0, 8: 2.5, 16: 2.0},
        every={1: 0.4, 2: 0.25, 4: 0.2, 8: 0.2, 16: 0.2},
    ),
    "laptop": Scale(
        "laptop",
        "CIFAR-10 and the paper's 7-layer network, one seed, one learning rate of the paper's grid (the largest; the "
        "middle one for EAMSGD), shorter virtual times, runs end at 20 % test error",
        data="cifar10",
        network="cifar",
        seeds=(0,),
        seconds={1: 480.0, 2: 400.0, 4: 160.0, 8: 150.0, 16: 150.0},
        short={4: 30.0, 8: 30.0, 16: 30.0},  # one time for all p, which are compared there
        every={1: 10.0, 2: 5.0, 4: 3.0, 8: 2.0, 16: 1.0},
        target=0.20,
    ),
    "paper": Scale(
        "paper",
        "CIFAR-10 and the paper's 7-layer network, the paper's grid of learning rates, three seeds, twenty virtual "
        "minutes (the paper's text does not say how long it trained)",
        data="cifar10",
        network="cifar",
        seeds=(0, 1, 2),
        seconds=dict.fromkeys((1, 2, 4, 8, 16), 1200.0),
        every=dict.fromkeys((1, 2, 4, 8, 16), 10.0),
    ),
}
