"""The table of recipes: what of the paper each one is, the runs it needs, and how it is drawn.

It imports neither torch nor matplotlib, so that `easgd paper --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from easgd.experiments.paper import grids
from easgd.experiments.paper.grids import Grid
from easgd.experiments.paper.scales import Scale


@dataclass(frozen=True)
class Recipe:
    """One figure or table of the paper."""

    name: str
    place: str
    """where in the paper"""
    title: str
    draw: str
    """the function that draws it: `module.function` of this package, or of `experiments.theory`"""
    grid: Callable[[Scale], Grid] | None = None
    rows: tuple[str, ...] = ()
    """settings that tell the rows of the figure apart"""
    every: bool = False
    """whether every learning rate is drawn, not only the best"""
    levels: tuple[float, ...] = ()
    """test errors of the time-to-error table at paper scale"""
    laptop_levels: tuple[float, ...] = (0.40, 0.30, 0.25, 0.21)
    paper_says: str = ""
    """the paper's own numbers, labelled so wherever they are shown"""

    def levels_at(self, scale: Scale) -> tuple[float, ...] | None:
        """The levels of a scale; chosen from the runs where the problem is not the paper's."""
        if scale.name == "smoke" or not self.levels:
            return None
        return self.levels if scale.name == "paper" else self.laptop_levels or None


SPEED, IMAGENET = (0.21, 0.20, 0.19, 0.18), (0.49, 0.47, 0.45, 0.43)
PAIR_LEVELS = (0.40, 0.30, 0.25, 0.23, 0.22, 0.21, 0.20)
HEADLINE = "EAMSGD, p = 16, reaches 21 % test error 11.1 times sooner than MSGD"
ON_IMAGENET = "EAMSGD, p = 8, reaches 49 % test error 1.8 times sooner than DOWNPOUR"
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("fig1", "Figure 1", "Spectral radius of ADMM's round-robin map", "theory.fig1"),
        Recipe(
            "fig2", "Figure 2, CIFAR", "Curves over the communication period τ, p = 4", "drawing.in_rows",
            grids.periods, rows=("period",), levels=SPEED,
        ),
        Recipe(
            "fig3", "Figure 3, CIFAR", "Curves over the number of workers p, τ = 10 (DOWNPOUR's family: 1)",
            "drawing.in_rows", grids.workers, rows=("workers",), levels=SPEED,
            paper_says=HEADLINE,
        ),
        Recipe(
            "fig4", "Figure 4, ImageNet", "Curves over the number of workers p, τ = 10 (on photographs 2; DOWNPOUR: 1)",
            "drawing.in_rows", grids.images, rows=("workers",),
            levels=IMAGENET, laptop_levels=(),
            paper_says=ON_IMAGENET,
        ),
        Recipe(
            "headline", "Figure 3, caption", "Time to a test error: MSGD, and EAMSGD over p", "drawing.speed",
            grids.headline, levels=(0.40, 0.30, 0.25, 0.21),
            paper_says=HEADLINE,
        ),
        Recipe(
            "pairs", "Figure 3, caption", "MSGD and EAMSGD at every learning rate", "pairs.draw", grids.pairs,
            every=True, levels=PAIR_LEVELS, laptop_levels=PAIR_LEVELS, paper_says=HEADLINE,
        ),
        Recipe(
            "seeds", "Figure 3, caption", "MSGD and EAMSGD over their seeds", "seeds.draw", grids.seeds, every=True,
            levels=PAIR_LEVELS, laptop_levels=(0.40, 0.30, 0.25), paper_says=HEADLINE,
        ),
        Recipe("mse-grid", "Supplement, figure of the MSE", "Mean squared error of the center", "theory.mse_grid"),
        Recipe(
            "sequential", "Supplement, SGD, ASGD, MVASGD, MSGD", "Sequential methods, p = 1", "drawing.as_long",
            grids.sequential, levels=SPEED,
        ),
        Recipe(
            "footnotes", "Section 5, footnotes", "Asynchronous ADMM, and workers from different starts, p = 4",
            "drawing.side_by_side", grids.footnotes,
        ),
        Recipe(
            "eta", "Supplement, dependence of the learning rate", "EASGD and EAMSGD over η, τ = 10", "drawing.per_rate",
            grids.rates, every=True,
        ),
        Recipe(
            "tau", "Supplement, dependence of the communication period", "EASGD and EAMSGD over τ, with decay γ",
            "drawing.per_period", grids.decays, every=True,
        ),
        Recipe(
            "breakdown", "Supplement, table of the wallclock time", "Compute, data and communication", "table",
            grids.real_breakdown,
        ),
        Recipe(
            "speedup", "Supplement, time speed-up", "Time to a test error against p", "drawing.time_bars",
            grids.workers, levels=SPEED,
            paper_says=HEADLINE,
        ),
        Recipe(
            "sequential-imagenet", "Supplement, SGD, ASGD, MVASGD, MSGD on ImageNet", "Sequential methods, p = 1",
            "drawing.zoomed", grids.images_alone, levels=IMAGENET, laptop_levels=(),
        ),
        Recipe(
            "speedup-imagenet", "Supplement, time speed-up on ImageNet", "Time to a test error against p",
            "drawing.time_bars", grids.images, levels=IMAGENET, laptop_levels=(), paper_says=ON_IMAGENET,
        ),
        Recipe(
            "bytes", "Beyond the paper", "Test error against bytes exchanged", "traffic.against_bytes", grids.traffic,
        ),
        Recipe(
            "descendants", "Beyond the paper", "The paper's methods and their descendants on four unequal machines",
            "traffic.time_and_bytes", grids.unequal, levels=(0.60, 0.50, 0.40), laptop_levels=(0.60, 0.50, 0.40),
        ),
    )
}  # fmt: skip
