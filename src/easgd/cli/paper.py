"""`easgd paper`: the recipes that reproduce the paper's figures and tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.cli.parsing import Command
from easgd.errors import SettingError, unknown
from easgd.experiments.paper.numbers import PAGES, numbers, rewritten
from easgd.experiments.paper.recipes import RECIPES
from easgd.experiments.paper.scales import SCALES
from easgd.extras import require_report
from easgd.settings import Count, option

if TYPE_CHECKING:
    from easgd.experiments.paper.make import MadeRecipe


@dataclass(frozen=True)
class PaperOptions:
    """The options of `easgd paper`."""

    recipes: tuple[str, ...] = option(
        "list, check, all, or some of the recipes below", (), positional=True, metavar="RECIPE"
    )
    scale: str = option("the size of the experiments", "smoke", choices=lambda: SCALES)
    out: Path | None = option(
        "folder of figures and runs (runs/paper/SCALE); finished runs in it are not repeated", metavar="DIR"
    )
    measured: Path | None = option(
        "draw one recipe again from the runs in this folder, as a committed figure has them; run nothing", metavar="DIR"
    )
    photos: Path | None = option(
        "of the recipes on ImageNet below paper scale: photographs in ImageNet's layout, on which the paper's own "
        "network takes a few steps", metavar="DIR",
    )  # fmt: skip
    jobs: Count | None = option("runs at once (the machine's cores)")
    plain: bool = option("plain lines even in a terminal", False)
    page: Path | None = option(
        "of `check`: a page whose numbers are computed from the measurements in docs/reproduction; all that cite them"
    )
    write: bool = option("of `check`: put the right numbers into the page", False)


def notes() -> str:
    """Return the recipes and the scales, as `easgd paper --help` shows them."""
    width = max(map(len, RECIPES))
    rows = "\n".join(f"  {r.name:<{width}}  {r.title} ({r.place})" for r in RECIPES.values())
    scales = "\n".join(f"  {scale.name:<{width}}  {scale.words}" for scale in SCALES.values())
    return f"""recipes:
{rows}

scales:
{scales}

Each recipe writes DIR/RECIPE: PNG, PDF, CSV, README.md, about.json and what its runs measured. DIR/runs has the runs;
recipes share them. Ctrl-C lets the runs save themselves; the same command goes on. `easgd paper list` says how long
every recipe takes on this machine."""


COMMAND = Command(
    "paper", PaperOptions,
    "Reproduce the paper's figures and tables: real gradients, time on the virtual clock of the paper's cluster.",
    ["paper fig2 --scale smoke", "paper headline --scale laptop --out runs/headline", "paper check"], notes(),
)  # fmt: skip


def main(argv: list[str]) -> int:
    options = COMMAND.parse(argv)
    names = list(options.recipes)
    for name in names:
        if name not in RECIPES and name not in ("list", "all", "check"):
            raise unknown("recipe", name, (*RECIPES, "all", "list", "check"))
    if names == ["list"]:
        return show_list()
    if names == ["check"]:
        return max(check(page, options.write) for page in ([options.page] if options.page else PAGES))
    for alone in {"list", "check"} & set(names):
        raise SettingError(f"{alone} stands alone: `easgd paper {alone}`")
    if not names:
        raise SettingError("no recipe given: `easgd paper fig2`; `easgd paper list` shows them all")
    chosen = list(RECIPES) if "all" in names else list(dict.fromkeys(names))
    require_report("a figure of the paper")
    out = options.out or Path("runs", "paper", options.scale)
    if options.measured is not None:
        if len(chosen) > 1:
            raise SettingError(
                f"--measured draws one recipe, not {len(chosen)}: `easgd paper {chosen[0]} --measured DIR`"
            )
        if options.photos is not None:
            raise SettingError("--measured trains nothing: leave out --photos")
        from easgd.experiments.paper.make import redraw

        return conclude(redraw(chosen[0], options.scale, options.measured, out))
    return carry_out(chosen, options, out)


def check(page: Path, write: bool) -> int:
    """Compare a page's numbers with what its runs have measured; return 1 if one differs."""
    if not page.exists():
        raise SettingError(f"page {str(page)!r} does not exist; give the one of a source tree with --page")
    found = numbers(page)
    wrong = [number for number in found if number.text != number.right]
    for number in wrong:
        print(f"{page}:{number.line}: {number.text} should be {number.right}: {number.formula}")
    right = len(found) - len(wrong)
    print(f"{right} numbers of {page} follow from the measurements, {len(wrong)} do not")
    if write:
        page.write_text(rewritten(page), encoding="utf-8")
    return int(bool(wrong) and not write)


def carry_out(names: list[str], options: PaperOptions, out: Path) -> int:
    """Make the recipes one after another; return the exit code."""
    from easgd.experiments.paper.make import make
    from easgd.training.compare_view import choose

    code = 0
    for name in names:
        try:
            made = make(
                name, options.scale, out, jobs=options.jobs, view=choose(options.plain), photos=options.photos,
                say=lambda text: print(text, flush=True),
            )  # fmt: skip
        except SettingError as error:
            if len(names) == 1:
                raise
            print(f"easgd: error: {name}: {error}", file=sys.stderr)  # one that cannot be made stops no other
            code = 2
            continue
        if made.unfinished:
            count = f"{made.unfinished} of {len(made.jobs)} runs are not finished"
            print(f"easgd: {name}: {count}; the same command goes on", file=sys.stderr)
            return 130
        code = max(code, conclude(made))
    return code


def conclude(made: MadeRecipe) -> int:
    """Print the finding and where the files are; return 1 if a run failed."""
    from easgd.cli.report import print_summary

    if made.model is not None:
        print_summary(made.model)
    if made.recipe.paper_says:
        print(f"paper: {made.recipe.paper_says}")
    for path in made.paths:
        print(path)
    failed = [job for job in made.jobs if job.state == "failed"]
    for job in failed:
        print(f"easgd: {job.name} failed: {job.reason}", file=sys.stderr)
    return 1 if failed else 0


def show_list() -> int:
    """Print every recipe with its time at each scale."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from easgd.experiments.paper.estimate import Pace, total_seconds, words
    from easgd.experiments.paper.make import sweep_of
    from easgd.training.compare import default_jobs

    console, pace = Console(highlight=False), Pace()
    if not console.is_terminal:
        console.width = 140
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("recipe", "what of the paper", *(f"{scale} (runs)" for scale in SCALES)):
        table.add_column(title, justify="right" if "(" in title else "left", no_wrap=title == "recipe")
    at_once = 1
    for recipe in RECIPES.values():
        cells = []
        for scale in SCALES.values():
            configs = sweep_of(recipe, scale).configs
            jobs = default_jobs(configs) if configs else 1
            at_once = max(at_once, jobs)
            cells.append(f"{words(total_seconds(configs, pace, jobs))} ({len(configs)})" if configs else "seconds (0)")
        table.add_row(recipe.name, f"{recipe.title} ({recipe.place})", *cells)
    console.print(table)
    known = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in pace.known())
    console.print(f"Estimated from one gradient of each network, measured just now on one core: {known}.", markup=False)
    console.print(
        f"Up to {at_once} runs at once. Recipes share runs (fig3, headline, speedup, …), and runs may end at a test "
        "error: the sum is less.", markup=False,
    )  # fmt: skip
    return 0
