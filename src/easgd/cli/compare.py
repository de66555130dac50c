"""`easgd compare`: a grid of runs, the best learning rate of each method, and a report."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.cli.parsing import Command
from easgd.extras import require_report
from easgd.settings import Count, option
from easgd.training.config import Config

if TYPE_CHECKING:
    from easgd.training.jobs import Job
    from easgd.training.sweep import Sweep


@dataclass(frozen=True)
class CompareOptions:
    """The options of `easgd compare` that are no settings of a run."""

    file: Path | None = option(
        "settings in TOML; any may be a list, and [[runs]] groups have settings of their own", positional=True,
        metavar="FILE",
    )  # fmt: skip
    out: Path | None = option(
        "folder of the comparison (runs/<name of the file>); finished runs in it are not repeated", metavar="DIR"
    )
    jobs: Count | None = option("runs at once (simulate: the machine's cores; other engines: 1)")
    levels: str | None = option("test errors of the time-to-error table, for instance 0.05,0.03", metavar="A,B")
    baseline: str | None = option("speed-ups are against this method (the fastest with one worker)", metavar="NAME")
    no_report: bool = option("no page and figures", False)
    dry_run: bool = option("list the runs, start none", False)
    plain: bool = option("plain lines even in a terminal", False)


COMMAND = Command(
    "compare", CompareOptions,
    "Run methods side by side: every combination of the settings, each in its own process. Of every method the\n"
    "learning rate with the smallest test error (mean over seeds) is in the tables and the report, as in the paper.",
    [
        "compare examples/compare-digits.toml",
        "compare --methods msgd,easgd,eamsgd --engine simulate --seconds 20 --seeds 0,1 --out runs/three",
    ],
    "Every setting of `easgd train` is an option too, with one value or several; it overrides the file. For instance\n"
    "  --methods easgd,eamsgd,msgd --periods 1,10 --workers 4,8 --lr 0.05,0.1 --seeds 0,1,2\n\n"
    "Ctrl-C lets the runs save themselves; the same command goes on. Exit code: 1 if a run failed, 130 if interrupted.",
    settings=Config, lists=True, usage="[FILE] [--SETTING A,B,…] [options]",
)  # fmt: skip


def grid_of(options: CompareOptions, settings: dict[str, Any]) -> Sweep:
    """Build the grid from file and flags; flags go first."""
    from easgd.training.sweep import check_baseline, load_sweep, make_sweep

    sweep = load_sweep(options.file, settings) if options.file else make_sweep({}, settings)
    given: dict[str, Any] = {}
    if options.levels is not None:
        from easgd.report.levels import parse_levels

        given["levels"] = parse_levels(options.levels)
    if options.baseline is not None:
        check_baseline(options.baseline, sweep.configs)
        given["baseline"] = options.baseline
    if options.jobs is not None:
        given["jobs"] = options.jobs
    return replace(sweep, **given)


def main(argv: list[str]) -> int:
    options, settings = COMMAND.parse_all(argv)
    grid = grid_of(options, settings)
    out = options.out or Path("runs", options.file.stem if options.file else "compare")
    if options.dry_run:
        return show_plan(grid, out)

    if not options.no_report:
        require_report("the report of a comparison (or --no-report)")

    from easgd.training.compare import carry_out
    from easgd.training.compare_view import choose

    planned = carry_out(grid, out, view=choose(options.plain))
    return conclude(planned, out, report=not options.no_report)


def show_plan(grid: Sweep, out: Path) -> int:
    """Print the runs and how they stand."""
    from easgd.training.compare import plan

    for job in plan(grid, out):
        state = "finished" if job.state == "kept" else "to go on with" if job.path.exists() else "new"
        print(f"{state:<13} {job.name}")
    print(f"{len(grid.configs)} runs in {out}")
    return 0


def conclude(planned: list[Job], out: Path, *, report: bool) -> int:
    """Print the tables, write the report, say what failed; return the exit code."""
    from easgd.cli.report import print_summary
    from easgd.report.data import build
    from easgd.report.write import write_model

    if any((job.path / "config.json").exists() for job in planned):
        model = build([out])
        print_summary(model)
        if report:
            print(f"page: {write_model(model, out / 'report')}")
    failed = [job for job in planned if job.state == "failed"]
    for job in failed:
        print(f"easgd: {job.name} failed: {job.reason} (log: {out / 'logs' / job.name}.log)", file=sys.stderr)
    open_ = sum(job.state in ("interrupted", "waiting") for job in planned)
    if open_:
        print(f"easgd: {open_} of {len(planned)} runs are not finished; the same command goes on", file=sys.stderr)
        return 130
    return 1 if failed else 0
