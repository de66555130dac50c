"""`easgd compare`: a grid of runs, the best learning rate of each method, and a report."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.cli.options import check_flag, parse_jobs
from easgd.errors import SettingError, refuse, unknown

if TYPE_CHECKING:
    from easgd.training.jobs import Job
    from easgd.training.sweep import Sweep

USAGE = """usage: easgd compare [FILE.toml] [--SETTING A,B,…] [options]

Run methods side by side: every combination of the settings, each in its own process. Of every method the learning
rate with the smallest test error (mean over seeds) stands in the tables and the report, as in the paper.

  FILE.toml         settings; any may be a list, and [[runs]] groups have settings of their own
  --SETTING A,B     a setting of `easgd train`, one or several values; overrides the file. For instance
                    --methods easgd,eamsgd,msgd --periods 1,10 --workers 4,8 --lr 0.05,0.1 --seeds 0,1,2
  --out DIR         folder of the comparison (runs/<name of the file>); finished runs in it are not repeated
  --jobs N          runs at once (simulate: the machine's cores; other engines: 1)
  --levels A,B      test errors of the time-to-error table, for instance 0.05,0.03
  --baseline NAME   speed-ups are against this method (the fastest with one worker)
  --no-report       no page and figures
  --dry-run         list the runs, start none
  --plain           plain lines even in a terminal

Ctrl-C lets the runs save themselves; the same command goes on. Exit code: 1 if a run failed, 130 if interrupted.
example: easgd compare examples/compare-digits.toml
         easgd compare --methods msgd,easgd,eamsgd --engine simulate --seconds 20 --seeds 0,1 --out runs/three
"""
PLURALS = {"methods": "method", "periods": "period", "lrs": "lr", "seeds": "seed"}
VALUES = ("--out", "--jobs", "--levels", "--baseline")
FLAGS = ("--no-report", "--dry-run", "--plain")


@dataclass
class Options:
    """The command line, parsed."""

    file: Path | None = None
    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    settings: dict[str, list[str]] = field(default_factory=dict)


def parse(argv: list[str]) -> Options:
    """Read file, settings and options in any order."""
    from easgd.training.config import FIELDS

    options, rest = Options(), list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        setting = PLURALS.get(name.removeprefix("--"), name.removeprefix("--").replace("-", "_"))
        if name in FLAGS and check_flag(word):
            options.flags.add(name)
        elif name in VALUES or (name.startswith("--") and setting in FIELDS):
            value = value if equals else rest.pop(0) if rest else ""
            if not value:
                raise refuse(name, "nothing", "it takes a value", "`easgd compare --help` shows an example")
            if name in VALUES:
                options.values[name] = value
            else:
                options.settings[setting] = split(value)
        elif word.startswith("-"):
            known = [f"--{field_.replace('_', '-')}" for field_ in (*FIELDS, *PLURALS)]
            raise unknown("option", name, [*known, *VALUES, *FLAGS, "--help"])
        elif options.file is not None:
            raise SettingError(f"{word!r}: one file at a time; {options.file} was given before")
        else:
            options.file = Path(word)
    return options


def split(text: str) -> list[str]:
    """Split at commas, but not inside the parentheses of a network."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def grid_of(options: Options) -> Sweep:
    """Build the grid from file and flags; flags go first."""
    from dataclasses import replace

    from easgd.training.sweep import check_baseline, load_sweep, make_sweep

    sweep = load_sweep(options.file, options.settings) if options.file else make_sweep({}, options.settings)
    given: dict[str, Any] = {}
    if "--levels" in options.values:
        from easgd.report.levels import parse_levels

        given["levels"] = parse_levels(options.values["--levels"])
    if "--baseline" in options.values:
        given["baseline"] = options.values["--baseline"]
        check_baseline(given["baseline"], sweep.configs)
    if "--jobs" in options.values:
        given["jobs"] = parse_jobs(options.values["--jobs"])
    return replace(sweep, **given)


def main(argv: list[str]) -> int:
    """Run `easgd compare`."""
    if not argv or {"-h", "--help"} & set(argv):
        print(USAGE, end="")
        return 0 if argv else 2
    options = parse(argv)
    grid = grid_of(options)
    out = Path(options.values.get("--out") or Path("runs", options.file.stem if options.file else "compare"))
    if "--dry-run" in options.flags:
        return show_plan(grid, out)

    from easgd.training.compare import carry_out
    from easgd.training.compare_view import choose

    planned = carry_out(grid, out, view=choose("--plain" in options.flags))
    return conclude(planned, out, report="--no-report" not in options.flags)


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
