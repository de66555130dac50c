"""The supplement's grid: mean squared error of the center by Lemma 1, over η × β within p × t.

x̃_0 = x_0 = 1, h = 1, σ = 10: the large-noise setting of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from easgd.experiments.theory.common import HATCH, MAP, UNSTABLE, figure, progress, write
from easgd.theory import center_mse, sync_stable
from easgd.theory.checks import Array, count
from easgd.theory.linear import Progress

WORKERS = (1, 10, 100, 1000, 10_000)
TIMES = (1, 2, 10, 100, math.inf)
LOW, HIGH, SIGMA, TOP = 1e-3, 1e3, 10.0, 2.0


@dataclass(frozen=True)
class MseGrid:
    """MSE [points, points], rows over β and columns over η, for each (p, t); nan where condition 11 fails."""

    lr: Array
    beta: Array
    mse: dict[tuple[int, float], Array]


def compute(points: int = 100, report: Progress | None = None) -> MseGrid:
    """Evaluate Lemma 1 at the middles of points × points cells of (0, 2) × (0, 2)."""
    n = count("points", points)
    axis = (np.arange(n) + 0.5) / n * TOP
    eta, beta = axis[None, :], axis[:, None]
    mse = {}
    for p in WORKERS:
        for t in TIMES:
            mse[p, t] = np.where(sync_stable(p, eta, beta), center_mse(t, p, eta, beta, 1.0, SIGMA), np.nan)
            if report is not None:
                report(1)
    return MseGrid(axis, axis, mse)


def draw(data: MseGrid) -> Figure:
    """Draw 5 × 5 blocks on one logarithmic colour scale; diverging settings are grey and hatched."""
    with figure(8.4, 8.2, **{"xtick.labelsize": 7, "ytick.labelsize": 7}) as fig:
        axes = fig.subplots(len(WORKERS), len(TIMES), sharex=True, sharey=True)
        for row, p in enumerate(WORKERS):
            for column, t in enumerate(TIMES):
                axis = axes[row, column]
                axis.set_facecolor(UNSTABLE)
                axis.fill_between([0, TOP], TOP, facecolor="none", edgecolor="0.45", hatch=HATCH, linewidth=0)
                image = axis.pcolormesh(
                    data.lr, data.beta, np.ma.masked_invalid(data.mse[p, t]), cmap=MAP, norm=LogNorm(LOW, HIGH),
                    shading="nearest", rasterized=True,
                )  # fmt: skip
                axis.set(xlim=(0, TOP), ylim=(0, TOP), xticks=[0, 1, 2], yticks=[0, 1, 2], aspect="equal")
                if row == 0:
                    axis.set_title(rf"$t = {t}$" if t < math.inf else r"$t = \infty$")
                if column == 0:
                    axis.set_ylabel(f"p = {p}\n" + r"$\beta = p\alpha$")
                if row == len(WORKERS) - 1:
                    axis.set_xlabel(r"$\eta$")
        fig.colorbar(image, ax=axes, label=r"$E(\tilde{x}_t - x^*)^2$", extend="both", shrink=0.6, location="right")
        fig.legend(
            handles=[Patch(facecolor=UNSTABLE, edgecolor="0.45", hatch=HATCH, label="diverges (condition 11 fails)")],
            loc="outside lower center", frameon=False,
        )  # fmt: skip
        fig.suptitle(r"Mean squared error of the center, synchronous EASGD ($h = 1$, $\sigma = 10$, start at 1)")
    return fig


def make(out: Path, points: int = 100) -> list[Path]:
    """Compute, draw and write `mse_grid.png`, `.pdf` and `.csv` (nan where it diverges)."""
    # drawing and writing take longer than computing: they are the bar's last item
    with progress("mse grid", len(WORKERS) * len(TIMES) + 1) as report:
        data = compute(points, report)
        rows = (
            [p, "inf" if t == math.inf else t, float(eta), float(beta), float(values[j, i])]
            for (p, t), values in data.mse.items()
            for j, beta in enumerate(data.beta)
            for i, eta in enumerate(data.lr)
        )
        paths = write(draw(data), ["workers", "t", "lr", "beta", "mse"], rows, out, "mse_grid")
        report(1)
    return paths
