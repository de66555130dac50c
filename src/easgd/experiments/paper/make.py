"""Makes a recipe: says how long it takes, runs what is not finished, draws, and archives the runs beside the figure."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from easgd.errors import SettingError, refuse, unknown
from easgd.experiments.paper import archive, drawing, grids
from easgd.experiments.paper.estimate import Pace, total_seconds, words
from easgd.experiments.paper.images import make_photographs
from easgd.experiments.paper.recipes import RECIPES, Recipe
from easgd.experiments.paper.scales import SCALES, Scale
from easgd.report.data import ReportData, build
from easgd.training.compare import carry_out, default_jobs, plan
from easgd.training.compare_view import CompareView
from easgd.training.config import Config
from easgd.training.folder import alone
from easgd.training.jobs import Job
from easgd.training.run import Run
from easgd.training.sweep import Sweep, make_sweep

Say = Callable[[str], None]
POINTS = {
    "smoke": {"fig1": 40, "mse-grid": 20}, "laptop": {"fig1": 300, "mse-grid": 100},
    "paper": {"fig1": 600, "mse-grid": 200},
}  # fmt: skip
"""Points per axis of the figures of the analysis."""


@dataclass
class MadeRecipe:
    recipe: Recipe
    jobs: list[Job] = field(default_factory=list)
    model: ReportData | None = None
    paths: list[Path] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        """The number of runs that the same command continues."""
        return sum(job.state in ("interrupted", "waiting") for job in self.jobs)


def find(name: str, scale: str) -> tuple[Recipe, Scale]:
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return RECIPES[name], SCALES[scale]


def sweep_of(recipe: Recipe, scale: Scale) -> Sweep:
    return make_sweep(recipe.grid(scale), where=f"recipe {recipe.name}") if recipe.grid else Sweep([])


def on_photographs(recipe: Recipe, scale: Scale, folder: Path) -> Scale:
    """Return the scale with a user's photographs in the place of ImageNet, and make a data set of them."""
    fitting = [known.name for known in RECIPES.values() if known.grid in (grids.images, grids.images_alone)]
    if recipe.name not in fitting:
        raise refuse("photos", folder, f"{recipe.name} trains on no photographs", f"use it with {', '.join(fitting)}")
    if scale.name == "paper":
        raise refuse("photos", folder, "paper scale is ImageNet itself", "give --scale smoke")
    return replace(scale, photos=make_photographs(folder), words=f"the paper's network on photographs of {folder}")


def make(
    name: str, scale_name: str, out: Path, *, jobs: int | None, view: CompareView | None, say: Say,
    photos: Path | None = None,
) -> MadeRecipe:  # fmt: skip
    """Make one figure or table in `out`/NAME; its runs are in `out`/runs, shared with the other recipes."""
    recipe, scale = find(name, scale_name)
    if photos is not None:
        scale = on_photographs(recipe, scale, photos)
    folder = out / name
    with alone(out):
        if recipe.grid is None:
            return _draw(MadeRecipe(recipe), scale, [], folder)
        sweep = sweep_of(recipe, scale)
        check_data(sweep.configs, scale)
        at_once = jobs or default_jobs(sweep.configs)
        left = [job.config for job in plan(sweep, out / "runs") if job.state != "kept"]
        say(forecast(recipe, scale, sweep.configs, left, at_once))
        made = MadeRecipe(recipe, carry_out(sweep, out / "runs", jobs=at_once, view=view))
        if made.unfinished:
            return made
        runs = [Run(job.path) for job in made.jobs if (job.path / "config.json").exists()]
        runs = [run for run in runs if run.evaluations]
        if not runs:
            raise SettingError(f"{name}: no run of it has measured anything; look at {out / 'runs' / 'logs'}")
        folder.mkdir(parents=True, exist_ok=True)
        return _draw(made, scale, runs, folder)


def redraw(name: str, scale_name: str, measured: Path, out: Path) -> MadeRecipe:
    """Draw a recipe again from what runs have measured, into `out`/NAME, and run nothing."""
    recipe, scale = find(name, scale_name)
    if recipe.grid is None:
        raise SettingError(f"{name}: it has no runs, and is drawn in seconds; leave out --measured")
    paths = sorted(path.parent for path in measured.glob("*/config.json"))
    runs = [run for run in map(Run, paths) if run.evaluations]
    if not runs:
        raise refuse("measured", measured, "there are no runs with measurements", "give the folder that has them")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    return _draw(MadeRecipe(recipe), scale, runs, folder)


def forecast(recipe: Recipe, scale: Scale, configs: Sequence[Config], left: Sequence[Config], at_once: int) -> str:
    if not left:
        return f"{recipe.name}: all {len(configs)} runs are finished; drawing"
    pace = Pace()
    needed = words(total_seconds(left, pace, at_once))
    gradient, _ = pace.of(left[0])
    end = " at most" if any(config.target for config in left) else ""
    return (
        f"{recipe.name}, scale {scale.name}: {scale.words}\n"
        f"{len(left)} of {len(configs)} runs to go, {at_once} at once: about {needed}{end} "
        f"(a gradient of {left[0].network} takes {gradient:.2g} s here, measured just now)"
    )


def check_data(configs: Sequence[Config], scale: Scale) -> None:
    """Find the data before anything runs; small generated sets are made on the spot."""
    from easgd.data import load, path_of

    made = grids.GENERATED.get(scale.name)
    for name in {config.data for config in configs}:
        if made is not None and name == made.name:
            made.make()
        elif name == "imagenet" and not path_of(name, "train").exists():
            remedy = "run `easgd data make folder PATH --name imagenet --size 256` on your copy of ILSVRC"
            raise refuse("data set", "imagenet-train", "not found", remedy)
        else:
            load(name, "train")
            load(name, "test")


def _draw(made: MadeRecipe, scale: Scale, runs: Sequence[Run], folder: Path) -> MadeRecipe:
    """Draw the figure or table of a recipe, and write its page and its runs beside it."""
    recipe, shown, notes = made.recipe, [], []
    module, _, function = recipe.draw.partition(".")
    if recipe.grid is None:
        theory = importlib.import_module(f"easgd.experiments.{recipe.draw}")
        paths = theory.make(folder, points=POINTS[scale.name][recipe.name])
    elif recipe.draw == "table":
        from easgd.experiments.paper import table

        paths, only = table.draw(scale, runs, folder, recipe.name)
        shown.append(only)
    else:
        made.model = build([run.path for run in runs], recipe.levels_at(scale), None, recipe.every)
        figure = drawing.PaperFigure(recipe.name, recipe.title, scale, made.model, folder, shown)
        draw = getattr(importlib.import_module(f"easgd.experiments.paper.{module}"), function)
        paths = draw(figure, recipe.rows) if recipe.rows else draw(figure)
        notes = list(made.model.notes)
    notes += [f"{job.name} failed: {job.reason}" for job in made.jobs if job.state == "failed"]
    archive.check_figures(paths)
    facts = archive.about(recipe, scale, runs, paths, folder)
    shown += [archive.runs_table(runs)] if runs else []
    made.paths = [*paths, *archive.write_page(facts, shown, folder, notes)]
    if runs:
        made.paths.append(archive.keep_runs(runs, folder))
    return made
