"""The corollary of Lemma 1: p times the stationary error of the center tends to a limit as p grows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from easgd.experiments.theory.common import LINES, figure, write
from easgd.theory import center_mse, mse_limit
from easgd.theory.checks import Array

SETTINGS = ((0.1, 0.9), (0.5, 0.9), (0.5, 0.1), (1.0, 1.5))  # (η, β), h = σ = 1


@dataclass(frozen=True)
class LimitCurve:
    """p·MSE at t = ∞ over p, and its limit, for each (η, β)."""

    workers: Array
    scaled: dict[tuple[float, float], Array]
    limit: dict[tuple[float, float], float]


def compute() -> LimitCurve:
    """Evaluate Lemma 1 at t = ∞ for p = 1 … 10⁴ and the corollary."""
    workers = np.unique(np.geomspace(1, 1e4, 60).round())
    scaled = {s: workers * center_mse(math.inf, workers, *s) for s in SETTINGS}
    return LimitCurve(workers, scaled, {s: mse_limit(*s) for s in SETTINGS})


def draw(data: LimitCurve) -> Figure:
    """Draw p·MSE over p, each with its limit."""
    with figure(6.0, 4.2) as fig:
        axis = fig.subplots()
        for (setting, values), (colour, dash) in zip(data.scaled.items(), LINES, strict=True):
            shown = np.where(np.isfinite(values), values, np.nan)
            eta, beta = setting
            label = rf"$\eta$ = {eta:g}, $\beta$ = {beta:g}: limit {data.limit[setting]:.4g}"
            axis.plot(data.workers, shown, color=colour, linestyle=dash, linewidth=1.8, label=label)
            axis.plot(data.workers[-1], data.limit[setting], marker="D", color=colour, clip_on=False, markersize=6)
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="workers $p$ (curves begin where condition 11 holds)",
            ylabel=r"$p\,E(\tilde{x}_\infty - x^*)^2$",
        )
        axis.set_title(r"The error of the center falls as $1/p$ (diamonds: the corollary; $h = \sigma = 1$)")
        fig.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        axis.grid(True, which="major", color="0.9")
    return fig


def make(out: Path) -> list[Path]:
    """Compute, draw and write `limit.png`, `.pdf` and `.csv`."""
    data = compute()
    rows = (
        [int(p), *setting, float(values[i]), data.limit[setting]]
        for setting, values in data.scaled.items()
        for i, p in enumerate(data.workers)
    )
    return write(draw(data), ["workers", "lr", "beta", "p_times_mse", "corollary"], rows, out, "limit")
