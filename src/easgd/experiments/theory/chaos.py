"""The paper's chaotic ADMM: η = 0.001, ρ = 2.5, λ = 0, x = x̃ = 1000 (caption of figure 1), against EASGD's α = ηρ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from easgd.experiments.theory.common import LINES, figure, write
from easgd.theory import admm_radius, admm_turn, easgd_radius, easgd_turn
from easgd.theory.checks import Array, count


@dataclass(frozen=True)
class DivergingPaths:
    """The center at every tick of the global clock, [ticks + 1] per method, and the radii of their cycles."""

    workers: int
    lr: float
    rho: float
    center: dict[str, Array]
    radius: dict[str, float]


def compute(
    workers: int = 3, lr: float = 0.001, rho: float = 2.5, start: float = 1000.0, ticks: int = 60_000
) -> DivergingPaths:
    """Run both methods turn by turn from their maps."""
    p, number = count("workers", workers), count("ticks", ticks)
    turns = {
        "ADMM": [np.linalg.multi_dot(admm_turn(i, p, lr, rho)[::-1]) for i in range(p)],
        "EASGD": [easgd_turn(i, p, lr, lr * rho) for i in range(p)],
    }
    states = {"ADMM": np.append(np.tile([0.0, start], p), start), "EASGD": np.full(p + 1, start)}
    center = {method: np.empty(number + 1) for method in turns}
    for method, maps in turns.items():
        state = states[method]
        for t in range(number + 1):
            center[method][t] = state[-1]
            state = maps[t % p] @ state
    radius = {"ADMM": admm_radius(p, lr, rho), "EASGD": easgd_radius(p, lr, lr * rho)}
    return DivergingPaths(p, lr, rho, center, radius)


def draw(data: DivergingPaths) -> Figure:
    """Left: the size of the center over the whole run. Right: its last turns, where one sees it oscillate."""
    with figure(8.6, 3.7) as fig:
        left, right = fig.subplots(1, 2, width_ratios=(3, 2))
        last = len(data.center["ADMM"]) - 1
        window = slice(max(0, last - 59), None)
        for (method, values), (colour, _) in zip(data.center.items(), (LINES[1], LINES[0]), strict=True):
            t, label = np.arange(len(values)), f"{method}: radius of a cycle {data.radius[method]:.5f}"
            width = 0.8 if method == "ADMM" else 1.8
            left.plot(t / 1000, np.abs(values), color=colour, linewidth=width, label=label, rasterized=True)
            right.plot(t[window] - last, values[window], color=colour, linewidth=width, marker=".", markersize=4)
        left.set(yscale="log", xlabel="global clock $t$ (thousand turns)", ylabel=r"$|\tilde{x}_t|$")
        left.set_title("ADMM leaves exponentially, EASGD settles")
        left.legend(loc="upper left", fontsize=8)
        right.set(xlabel="turns before the end", ylabel=r"$\tilde{x}_t$", title="The last turns")
        right.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
        settings = rf"p = {data.workers}, $\eta$ = {data.lr:g}, $\rho$ = {data.rho:g}, start at 1000"
        fig.suptitle(rf"Round-robin on $F(x) = x^2/2$: {settings}")
    return fig


def make(out: Path, workers: int = 3, lr: float = 0.001, rho: float = 2.5, ticks: int = 60_000) -> list[Path]:
    """Compute, draw and write `chaos.png`, `.pdf` and `.csv` (every tenth tick, and the last)."""
    data = compute(workers, lr, rho, ticks=ticks)
    shown = sorted({*range(0, ticks + 1, 10), ticks})
    rows = ([t, *(float(values[t]) for values in data.center.values())] for t in shown)
    return write(draw(data), ["t", *(f"center_{method.lower()}" for method in data.center)], rows, out, "chaos")
