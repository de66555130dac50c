"""`easgd paper`: the recipes that reproduce the paper's figures and tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.cli.options import check_flag, parse_jobs
from easgd.errors import SettingError, refuse, unknown
from easgd.experiments.paper.recipes import RECIPES
from easgd.experiments.paper.scales import SCALES

if TYPE_CHECKING:
    from easgd.experiments.paper.make import MadeRecipe

VALUES = ("--scale", "--out", "--jobs")
FLAGS = ("--plain", "--help", "-h")


def usage() -> str:
    """Return the text of `easgd paper --help`."""
    width = max(map(len, RECIPES))
    rows = "\n".join(f"  {r.name:<{width}}  {r.title} ({r.place})" for r in RECIPES.values())
    scales = "\n".join(f"  {scale.name:<{width}}  {scale.words}" for scale in SCALES.values())
    return f"""usage: easgd paper list
       easgd paper RECIPE… [--scale smoke|laptop|paper] [--out DIR] [--jobs N] [--plain]

Reproduce the paper's figures and tables: real gradients, time on the virtual clock of the paper's cluster.

recipes (or all):
{rows}

scales:
{scales}

  --scale NAME   smoke if nothing is said
  --out DIR      folder of figures and runs (runs/paper/SCALE); finished runs in it are not repeated
  --jobs N       runs at once (the machine's cores)
  --plain        plain lines even in a terminal

Each recipe writes DIR/RECIPE: PNG, PDF, CSV, README.md, about.json and what its runs measured. DIR/runs has the runs;
recipes share them. Ctrl-C lets the runs save themselves; the same command goes on. `easgd paper list` says how long
every recipe takes on this machine.
example: easgd paper fig2 --scale smoke
         easgd paper headline --scale laptop --out runs/headline
"""


def parse(argv: list[str]) -> tuple[list[str], dict[str, str], bool]:
    """Return recipes, options and whether output is plain."""
    names, values, plain, rest = [], {}, False, list(argv)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in VALUES:
            values[option] = value if equals else rest.pop(0) if rest else ""
            if not values[option]:
                raise refuse(option, "nothing", "it takes a value", "`easgd paper --help` shows an example")
        elif option == "--plain":
            plain = check_flag(word)
        elif word.startswith("-"):
            raise unknown("option", option, (*VALUES, *FLAGS))
        else:
            names.append(word)
    return names, values, plain


def main(argv: list[str]) -> int:
    """Run `easgd paper`."""
    if not argv or {"-h", "--help"} & set(argv):
        print(usage(), end="")
        return 0 if argv else 2
    names, values, plain = parse(argv)
    scale = values.get("--scale", "smoke")
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    for name in names:
        if name not in RECIPES and name not in ("list", "all"):
            raise unknown("recipe", name, (*RECIPES, "all", "list"))
    jobs = parse_jobs(values.get("--jobs"))
    if names == ["list"]:
        return show_list()
    if "list" in names:
        raise SettingError("list stands alone: `easgd paper list`")
    if not names:
        raise SettingError("no recipe given: `easgd paper fig2`; `easgd paper list` shows them all")
    chosen = list(RECIPES) if "all" in names else list(dict.fromkeys(names))
    out = Path(values.get("--out") or Path("runs", "paper", scale))
    return carry_out(chosen, scale, out, jobs, plain)


def carry_out(names: list[str], scale: str, out: Path, jobs: int | None, plain: bool) -> int:
    """Make the recipes one after another; return the exit code."""
    from easgd.experiments.paper.make import make
    from easgd.training.compare_view import choose

    code = 0
    for name in names:
        try:
            made = make(name, scale, out, jobs=jobs, view=choose(plain), say=lambda text: print(text, flush=True))
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
