"""`easgd report`: runs into a page, figures and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from easgd.cli.parsing import Command
from easgd.errors import SettingError
from easgd.settings import option

if TYPE_CHECKING:
    from easgd.report.data import ReportData


@dataclass(frozen=True)
class ReportOptions:
    """The options of `easgd report`."""

    runs: tuple[Path, ...] = option(
        "folders of `easgd train --out` or `easgd compare --out`; every run below them is read", (),
        positional=True, metavar="RUN",
    )  # fmt: skip
    out: Path | None = option("folder to write into (RUN/report)", metavar="DIR")
    levels: str | None = option(
        "test errors of the time-to-error table, for instance 0.25,0.21 (chosen from the runs)", metavar="A,B"
    )
    baseline: str | None = option("speed-ups are against this method (the fastest with one worker)", metavar="NAME")
    every: bool = option("draw every learning rate, not only the best one of each method", False)
    scale: Literal["auto", "linear", "log"] = option("of the curves", "auto")


COMMAND = Command(
    "report", ReportOptions,
    "Report on runs of train, compare and launch: a page that works offline (curves, time to a test error, speed-ups,\n"
    "time breakdown), the figures as PNG and PDF, the numbers as CSV. Running, killed and broken runs are accepted.",
    ["report runs/compare-digits --levels 0.05,0.03"],
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Parse, report, say where."""
    options = COMMAND.parse(argv)
    if not options.runs:
        raise SettingError("no run given: `easgd report runs/my-run`; see `easgd report --help`")

    from easgd.report.data import build
    from easgd.report.levels import parse_levels
    from easgd.report.write import write_model

    levels = parse_levels(options.levels) if options.levels is not None else None
    model = build(list(options.runs), levels, options.baseline, options.every)
    page = write_model(model, options.out or options.runs[0] / "report", options.scale)
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
