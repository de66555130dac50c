"""How long a recipe takes here: the gradients and evaluations of its runs, times the seconds of one, measured here.

Runs that end at a test error may end sooner, and other programs on the machine make them later: it is an estimate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy

from easgd.data import load, path_of
from easgd.engines.simulate import CostModel
from easgd.training.compare import families
from easgd.training.config import Config

START = 5.0
"""Seconds until a run's process has imported torch and opened its data."""
IMAGES = {"digits": (1433, 364), "cifar10": (50_000, 10_000), "imagenet": (1_281_167, 50_000)}
"""Training and test images; generated sets are small."""
LARGE = 100
"""Networks with larger inputs are measured on few images, and multiplied."""
FEW = 8


class Pace:
    """Seconds of one gradient per network and batch, measured once each."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, int | None], tuple[float, int]] = {}

    def of(self, config: Config) -> tuple[float, int]:
        """Return the seconds of one gradient, and the number of parameters."""
        key = config.network, config.batch
        if key not in self._known:
            self._known[key] = _measure(config)
        return self._known[key]

    def known(self) -> list[tuple[str, float]]:
        """Return every network that was measured, with the seconds of one gradient."""
        found = [(name or "?", batch, seconds) for (name, batch), (seconds, _) in self._known.items()]
        return [(f"{n if len(n) < 20 else f'{n[:12]}…'} ×{batch}", seconds) for n, batch, seconds in found]


def _measure(config: Config) -> tuple[float, int]:
    from easgd.models import build
    from easgd.training.task import NETWORKS

    name, batch = config.network or "", config.batch or 128
    net = NETWORKS[name]() if name in NETWORKS else build(name)
    size = net.input_shape.size
    images = batch if size < LARGE else min(batch, FEW)
    x = torch.rand(images, net.input_shape.channels, size, size)
    y = torch.zeros(images, dtype=torch.long)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run
    try:
        times = []
        # The first gradient also faults in its memory: twice the time of the next with the paper's ImageNet network.
        for _ in range(3 if size < LARGE else 2):
            began = time.perf_counter()
            torch.autograd.backward(cross_entropy(net(x), y))
            times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return min(times) * batch / images, sum(p.numel() for p in net.parameters())


def step_seconds(config: Config, parameters: int) -> float:
    """Virtual seconds of one step with its share of an exchange."""
    cost, p = CostModel.preset(config.cost), config.workers or 1
    step = cost.compute + cost.data_seconds(p)
    if config.method_class.sequential or cost.overlap:
        return step
    return step + 2 * cost.transfer_seconds(4 * parameters, p) / config.steps_between


def gradients(config: Config, parameters: int) -> float:
    """Steps of all workers together until the budget is used up."""
    p = config.workers or 1
    limits = [math.inf]
    if config.steps:
        limits.append(config.steps * p)
    if config.seconds and config.engine == "simulate":
        limits.append(config.seconds / step_seconds(config, parameters) * p)
    return min(limits)


def run_seconds(config: Config, pace: Pace, measured: int = 1) -> float:
    """Real seconds of one run on one core (on p cores for the local engine), or of several that go the same way."""
    gradient, parameters = pace.of(config)
    train, test = _images(config.data)
    points = 1 + (config.seconds or 0.0) / (config.evaluate_every or math.inf)
    # A forward pass is about a third of a gradient.
    evaluation = (test + min(config.train_subset, train)) / (config.batch or 128) * gradient / 3
    return START + gradients(config, parameters) * gradient + measured * points * evaluation


def _images(name: str) -> tuple[int, int]:
    """Return the number of training and test images, of sets that are not there yet by what is known of them."""
    if all(path_of(name, split).exists() for split in ("train", "test")):
        return len(load(name, "train")), len(load(name, "test"))
    return IMAGES.get(name, (2000, 1000))


def total_seconds(configs: Sequence[Config], pace: Pace, at_once: int) -> float:
    """Real seconds of all runs, this many at once."""
    each = [run_seconds(group[0], pace, len(group)) for group in families(configs)]
    return max([sum(each) / at_once, *each]) if each else 0.0


def words(seconds: float) -> str:
    """Write a time in a fitting unit, with no more digits than an estimate has."""
    for unit, size in (("years", 365 * 86400.0), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"
