"""Lemma 2: the double average, scaled by √(tp), against its normal limit, by Monte-Carlo and exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from easgd.experiments.theory.common import LINES, figure, progress, write
from easgd.theory import double_average_covariance, double_average_error, double_average_variance
from easgd.theory.checks import Array, count
from easgd.theory.linear import Progress

TIMES = (10, 100, 1000)
SETTINGS = ((0.1, 0.9), (0.5, 0.9), (1.0, 0.3), (0.05, 0.3))  # (η, β) of the exact curves; the first is sampled
WORKERS, H, SIGMA = 4, 1.0, 1.0


@dataclass(frozen=True)
class AverageSamples:
    """Samples of √(tp)(z_t − x*) per t; the exact t·p·V[z_t] over t per (η, β); their common limit."""

    samples: dict[int, Array]
    times: Array
    exact: dict[tuple[float, float], Array]
    limit: float


def compute(samples: int = 20_000, seed: int = 0, report: Progress | None = None) -> AverageSamples:
    """Sample synchronous EASGD from the optimum, and evaluate the exact variances."""
    n, rng = count("samples", samples), np.random.default_rng(count("seed", seed, least=0))
    eta, beta = SETTINGS[0]
    x, center, total = np.zeros((n, WORKERS)), np.zeros(n), np.zeros(n)
    kept = {}
    for t in range(1, TIMES[-1] + 1):
        total += center
        if t in TIMES:
            kept[t] = double_average_error(total / t, t, WORKERS)
        gradient = H * x - SIGMA * rng.standard_normal((n, WORKERS))
        pull = beta / WORKERS * (x - center[:, None])
        x, center = x - eta * gradient - pull, center + pull.sum(1)
        if report is not None:
            report(1)
    times = np.unique(np.geomspace(3, 1e5, 60).round().astype(int))
    exact = {
        s: np.array([t * WORKERS * double_average_variance(int(t), WORKERS, *s, H, SIGMA) for t in times])
        for s in SETTINGS
    }
    return AverageSamples(kept, times, exact, float(double_average_covariance(H, SIGMA**2)[0, 0]))


def draw(data: AverageSamples) -> Figure:
    """Left: histograms and the normal density. Right: exact variances on their way to the limit."""
    with figure(8.6, 3.7) as fig:
        left, right = fig.subplots(1, 2)
        bins, grid = np.linspace(-4, 4, 61), np.linspace(-4, 4, 201)
        for (t, values), (colour, dash) in zip(data.samples.items(), LINES[:3], strict=True):
            left.hist(
                values, bins=bins, density=True, histtype="step", color=colour, linestyle=dash, linewidth=1.4,
                label=f"t = {t}",
            )  # fmt: skip
        density = np.exp(-(grid**2) / (2 * data.limit)) / np.sqrt(2 * np.pi * data.limit)
        left.plot(grid, density, color="black", linewidth=2.0, alpha=0.6, label=r"$N(0, \sigma^2/h^2)$")
        eta, beta = SETTINGS[0]
        left.set_title(rf"Samples: $\eta$ = {eta:g}, $\beta$ = {beta:g}, p = {WORKERS}")
        left.set(xlabel=r"$\sqrt{tp}\,(z_t - x^*)$", ylabel="density", xlim=(-4, 4))
        left.legend(loc="upper right", fontsize=8)
        for ((eta, beta), values), (colour, dash) in zip(data.exact.items(), LINES, strict=True):
            label = rf"$\eta$ = {eta:g}, $\beta$ = {beta:g}"
            right.plot(data.times, values / data.limit, color=colour, linestyle=dash, linewidth=1.8, label=label)
        right.axhline(1.0, color="0.5", linewidth=0.8)
        right.set(xscale="log", xlabel="steps $t$", ylabel=r"$t\,p\,V[z_t]\;/\;(\sigma^2/h^2)$", ylim=(0, None))
        right.set_title("Exact: one limit, whatever the settings")
        right.legend(loc="lower right", fontsize=8)
    return fig


def make(out: Path, samples: int = 20_000, seed: int = 0) -> list[Path]:
    """Compute, draw and write `double_average.png`, `.pdf` and `.csv` (the exact curves and sampled variances)."""
    with progress("double average", TIMES[-1]) as report:
        data = compute(samples, seed, report)
    rows: list[list[object]] = [
        ["exact", *setting, int(t), float(v)]
        for setting, values in data.exact.items()
        for t, v in zip(data.times, values, strict=True)
    ]
    rows += [["sampled", *SETTINGS[0], t, float(values.var())] for t, values in data.samples.items()]
    header = ["kind", "lr", "beta", "t", "t_p_variance"]
    return write(draw(data), header, rows, out, "double_average")
