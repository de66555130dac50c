"""What a delay costs: variance of the center, speed and stable region when an answer is used k steps later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from easgd.errors import refuse
from easgd.experiments.theory.common import LINES, figure, write
from easgd.theory import center_variance, delay_beta_bound, period_radius
from easgd.theory.checks import Array, count

SETTINGS = ((0.0, 0.1), (0.9, 0.1), (0.99, 0.01), (0.99, 0.1))  # (δ, ηh), β = 0.9


@dataclass(frozen=True)
class DelayCurves:
    """Ratios to k = 1 and radii over k for each (δ, ηh); the largest stable β over ηh for some k."""

    workers: int
    period: int
    delays: Array
    variance: dict[tuple[float, float], Array]
    radius: dict[tuple[float, float], Array]
    e: Array
    beta: dict[int, Array]


def compute(workers: int, period: int) -> DelayCurves:
    """Evaluate the synchronous maps for k = 1 … τ − 1, and the closed bound of β."""
    if count("period", period) < 3:
        raise refuse("period", period, "delays are below the period", "give 3 or more")
    delays = np.arange(1.0, period)

    def over(function: object, momentum: float, e: float) -> Array:
        each = {"period": period, "momentum": momentum, "schedule": "sync"}
        return np.array([function("easgd", workers, e, delay=int(k), **each) for k in delays])  # type: ignore[operator]

    variance = {s: (found := over(center_variance, *s)) / found[0] for s in SETTINGS}
    radius = {s: over(period_radius, *s) for s in SETTINGS}
    e = np.linspace(0.005, 1.0, 200)
    some = sorted({1, period // 4, period // 2, period - 1} - {0})
    beta = {k: delay_beta_bound(workers, e, period=period, delay=k) for k in some}
    return DelayCurves(workers, period, delays, variance, radius, e, beta)


def draw(data: DelayCurves) -> Figure:
    """Draw the three panels."""
    with figure(11.0, 3.8) as fig:
        left, middle, right = fig.subplots(1, 3)
        for setting, (colour, dash) in zip(data.variance, LINES, strict=True):
            label = rf"$\delta$ = {setting[0]:g}, $\eta h$ = {setting[1]:g}"
            style = {"color": colour, "linestyle": dash, "linewidth": 1.8}
            left.plot(data.delays, data.variance[setting], label=label, **style)
            middle.plot(data.delays, data.radius[setting], **style)
        left.set(xlabel="delay $k$", ylabel="against $k = 1$", title="Variance of the center")
        middle.set(xlabel="delay $k$", ylabel="factor of the errors", title="A period's spectral radius", ylim=(0, 1))
        for (k, bound), (colour, dash) in zip(data.beta.items(), LINES, strict=False):
            right.plot(data.e, bound, color=colour, linestyle=dash, linewidth=1.8, label=f"$k$ = {k}")
        right.set(xlabel=r"$\eta h$", ylabel=r"largest stable $\beta$", title="Stable region, no momentum")
        right.legend(fontsize=8, frameon=False)
        for axis in (left, middle, right):
            axis.grid(True, which="major", color="0.9")
        fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        fig.suptitle(rf"An answer used $k$ steps later: $p$ = {data.workers}, $\tau$ = {data.period}, $\beta$ = 0.9")
    return fig


def make(out: Path, workers: int = 4, period: int = 10) -> list[Path]:
    """Compute, draw and write `delay.png`, `.pdf` and `.csv`."""
    data = compute(workers, period)
    rows = (
        [int(k), *setting, float(data.variance[setting][i]), float(data.radius[setting][i])]
        for setting in data.variance
        for i, k in enumerate(data.delays)
    )
    return write(draw(data), ["delay", "momentum", "lr_h", "variance_ratio", "radius"], rows, out, "delay")
