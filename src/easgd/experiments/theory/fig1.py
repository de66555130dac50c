"""Figure 1: the largest absolute eigenvalue of ADMM's round-robin cycle over (η, ρ), and EASGD's beside it.

The paper shows ADMM for p = 3 and p = 8. EASGD with α = ηρ in the same window is ours, for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from easgd.errors import refuse
from easgd.experiments.theory.common import HATCH, MAP, figure, progress, write
from easgd.theory import admm_radius, easgd_radius
from easgd.theory.checks import Array, count
from easgd.theory.linear import Progress

LR, RHO = 1e-2, 10.0
MOST, SHOWN = 4000, 600  # points per axis: computed, drawn


@dataclass(frozen=True)
class RadiusMaps:
    """Radii [points, points], rows over ρ and columns over η, for each (method, p)."""

    lr: Array
    rho: Array
    radius: dict[tuple[str, int], Array]


def compute(points: int = 300, workers: tuple[int, ...] = (3, 8), report: Progress | None = None) -> RadiusMaps:
    """Evaluate both maps on a grid of points × points, at the middles of its cells."""
    n = count("points", points)
    if n > MOST:
        raise refuse("points", n, f"must not exceed {MOST}: four panels would fill 1 GiB", "give fewer points")
    lr, rho = (np.arange(n) + 0.5) / n * LR, (np.arange(n) + 0.5) / n * RHO
    eta, penalty = lr[None, :], rho[:, None]
    radius = {}
    for p in workers:
        radius["ADMM", p] = admm_radius(p, eta, penalty, progress=report)
        radius["EASGD", p] = easgd_radius(p, eta, eta * penalty, progress=report)
    return RadiusMaps(lr, rho, radius)


def draw(data: RadiusMaps) -> Figure:
    """Draw one panel per (method, p); where the radius exceeds 1 the panel is hatched and outlined."""
    workers = sorted({p for _, p in data.radius})
    with figure(3.6 * len(workers) + 0.6, 6.0) as fig:
        axes = fig.subplots(2, len(workers), squeeze=False, sharex=True, sharey=True)
        step = -(-len(data.lr) // SHOWN)  # no printer shows more
        lr, rho = data.lr[::step] * 1e3, data.rho[::step]
        # One scale for all panels, on both sides of 1: what matters is the side, then how far.
        low = min(float(r.min()) for r in data.radius.values())
        high = max(float(r.max()) for r in data.radius.values())
        for column, p in enumerate(workers):
            for row, method in enumerate(("ADMM", "EASGD")):
                axis, values = axes[row, column], data.radius[method, p][::step, ::step]
                image = axis.pcolormesh(
                    lr, rho, values, cmap=MAP, vmin=low, vmax=high, shading="nearest", rasterized=True
                )
                if values.max() > 1 and len(data.lr) > 1:
                    axis.contourf(lr, rho, values, levels=[1, np.inf], colors="none", hatches=[HATCH])
                    axis.contour(lr, rho, values, levels=[1.0], colors="white", linewidths=1.2)
                share = float((data.radius[method, p] > 1).mean())
                axis.set_title(f"{method}, p = {p}: " + (f"unstable on {share:.0%}" if share else "stable everywhere"))
                if row == 1:
                    axis.set_xlabel(r"learning rate $\eta$  ($10^{-3}$)")
                if column == 0:
                    axis.set_ylabel(r"penalty $\rho$   ($\alpha = \eta\rho$)")
        fig.colorbar(image, ax=axes, label="largest absolute eigenvalue of one cycle", shrink=0.8)
        fig.suptitle("Round-robin cycle on $F(x) = x^2/2$ (hatched: spectral radius above 1)")
    return fig


def make(out: Path, points: int = 300, workers: tuple[int, ...] = (3, 8)) -> list[Path]:
    """Compute, draw and write `fig1.png`, `.pdf` and `.csv`."""
    for p in workers:
        count("workers", p)  # before the bar appears
    with progress("figure 1", 2 * len(workers) * count("points", points) ** 2) as report:
        data = compute(points, workers, report)
        keys = list(data.radius)
        header = ["lr", "rho", *(f"{method.lower()}_p{p}" for method, p in keys)]
        rows = (
            [float(eta), float(rho), *(float(data.radius[key][j, i]) for key in keys)]
            for j, rho in enumerate(data.rho)
            for i, eta in enumerate(data.lr)
        )
        return write(draw(data), header, rows, out, "fig1")
