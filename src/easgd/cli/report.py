"""`easgd report`: runs into a page, figures and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.errors import SettingError, refuse, unknown

if TYPE_CHECKING:
    from easgd.report.data import ReportData

USAGE = """usage: easgd report RUN … [options]

Report on runs and comparisons: a page that works offline (curves, time to a test error, speed-ups, time
breakdown), the figures as PNG and PDF, the numbers as CSV. Running, killed and broken runs are accepted.

  RUN …             folders of `easgd train --out` or `easgd compare --out`; every run below them is read
  --out DIR         folder to write into (RUN/report)
  --levels A,B      test errors of the time-to-error table, for instance 0.25,0.21 (chosen from the runs)
  --baseline NAME   speed-ups are against this method (the fastest with one worker)
  --every           draw every learning rate, not only the best one of each method
  --scale NAME      of the curves: linear, log or auto (auto)

example: easgd report runs/compare-digits --levels 0.05,0.03
"""
VALUES = ("--out", "--levels", "--baseline", "--scale")


@dataclass
class Options:
    """The command line, parsed."""

    paths: list[Path] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    every: bool = False
    help: bool = False


def parse(argv: list[str]) -> Options:
    """Read folders and options in any order."""
    options, rest = Options(), list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            options.help = True
        elif word == "--every":
            options.every = True
        elif name in VALUES:
            value = value if equals else rest.pop(0) if rest else ""
            if not value:
                raise refuse(name, "nothing", "it takes a value", "`easgd report --help` shows an example")
            options.values[name] = value
        elif word.startswith("-"):
            raise unknown("option", name, [*VALUES, "--every", "--help"])
        else:
            options.paths.append(Path(word))
    return options


def main(argv: list[str]) -> int:
    """Parse, report, say where."""
    options = parse(argv)
    if options.help or not argv:
        print(USAGE, end="")
        return 0 if argv else 2
    if not options.paths:
        raise SettingError("no run given: `easgd report runs/my-run`; see `easgd report --help`")

    from easgd.report.data import build
    from easgd.report.levels import parse_levels
    from easgd.report.scales import check_scale
    from easgd.report.write import write_model

    levels = parse_levels(options.values["--levels"]) if "--levels" in options.values else None
    scale = check_scale(options.values.get("--scale", "auto"))
    model = build(options.paths, levels, options.values.get("--baseline"), options.every)
    page = write_model(model, Path(options.values.get("--out", options.paths[0] / "report")), scale)
    print_summary(model)
    print(f"page: {page}")
    return 0


def print_summary(model: ReportData) -> None:
    """Print the finding, one table of best errors and times, and what is missing."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from easgd.report import tables
    from easgd.report.data import headline

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    console.print(headline(model), markup=False, soft_wrap=True)
    times = {row[0][0]: row[1:] for row in tables.times(model).rows}
    console.print(f"\nbest test error; {model.axis} to a level (speed-up)", markup=False)
    table = Table(box=box.SIMPLE_HEAD)
    shown = 4 if console.width >= 100 else 3  # the hardest levels; the page has them all
    for name in ("method", "η", "best", *(f"to {100 * level:.3g} %" for level in model.levels[-shown:])):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for choice in sorted(model.choices, key=lambda c: c.score):
        found = [text for _, text in times[choice.label]]
        pairs = [
            "never" if time == "never reached" else time if gain == "–" else f"{time} ({gain})"
            for time, gain in zip(found[::2], found[1::2], strict=True)
        ]
        score = f"{100 * choice.score:.2f} %" if math.isfinite(choice.score) else "–"
        table.add_row(choice.label, "–" if choice.lr is None else f"{choice.lr:g}", score, *pairs[-shown:])
    console.print(table)
    for note in [*model.notes, *(f"{entry.name}: {note}" for entry in model.entries for note in entry.notes)]:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
