"""What a report shows, computed once: methods, curves, levels, units. Page, figures and tables only draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from easgd.errors import refuse
from easgd.files import read_json
from easgd.report.entry import COMPARISON, ReportRun, load, methods
from easgd.report.levels import Speedup, automatic_levels, comparators, speedup, time_to
from easgd.report.style import Look, looks
from easgd.training.run import Curve
from easgd.training.select import Choice
from easgd.training.sweep import check_levels

PANELS = {"train_loss": "training loss", "test_loss": "test loss", "test_error": "test error"}
UNITS = ((5 * 3600.0, 3600.0, "h"), (600.0, 60.0, "min"), (0.0, 1.0, "s"))
WORDS = {"h": "hours", "min": "minutes", "s": "seconds"}
JOINT = 0.9
"""A run that saw less than this share of its method's longest run is drawn, but is no part of the mean."""


@dataclass
class Line:
    """One method's curves: the mean over its seeds, and each seed's own."""

    choice: Choice[ReportRun]
    look: Look
    mean: dict[str, Curve]
    seeds: list[dict[str, Curve]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.choice.label


@dataclass
class ReportData:
    entries: list[ReportRun]
    lines: list[Line]
    levels: list[float]
    against: list[Choice[ReportRun]]
    clock: str
    """"virtual time", "wallclock" or, where both meet, "time"."""
    unit: str
    seconds: float
    """how many seconds the unit has"""
    notes: list[str]
    every: bool = False

    @property
    def choices(self) -> list[Choice[ReportRun]]:
        return [line.choice for line in self.lines]

    @property
    def launched(self) -> bool:
        """Whether all runs were launched: their scripts measure for themselves, and nothing of it is here."""
        return all(entry.attached is not None for entry in self.entries)

    @property
    def axis(self) -> str:
        return f"{self.clock} [{self.unit}]"

    def show_time(self, seconds: float) -> str:
        """Write a time in the report's unit."""
        if not math.isfinite(seconds):
            return "never"
        value = seconds / self.seconds
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def build(
    paths: Sequence[Path],
    levels: Sequence[float] | None = None,
    baseline: str | None = None,
    every: bool = False,
) -> ReportData:
    """Read the runs at and below the paths; a comparison brings its own levels and baseline."""
    if not paths:
        raise refuse("runs", "none", "a report needs at least one", "give the folder of a run")
    plan = (read_json(paths[0] / COMPARISON) or {}) if len(paths) == 1 else {}
    levels = levels or plan.get("levels")
    baseline = baseline or plan.get("baseline")
    entries = load(paths)
    chosen = methods(entries, every)
    ends = [float(e.curves["time"][-1]) for e in entries if len(e.curves["time"])]
    _, seconds, unit = next(row for row in UNITS if max(ends, default=0.0) >= row[0])
    return ReportData(
        entries=entries,
        lines=[Line(c, look, *joined(c)) for c, look in zip(chosen, looks(chosen), strict=True)],
        levels=check_levels(levels) if levels else automatic_levels(chosen),
        against=comparators(chosen, baseline),
        clock=clock(entries),
        unit=unit,
        seconds=seconds,
        notes=warnings(entries, chosen),
        every=every,
    )


def clock(entries: Sequence[ReportRun]) -> str:
    kinds = {entry.virtual for entry in entries} - {None}
    return "time" if len(kinds) != 1 else "virtual time" if True in kinds else "wallclock"


def warnings(entries: Sequence[ReportRun], chosen: Sequence[Choice[ReportRun]]) -> list[str]:
    result = []
    if {True, False} <= {entry.virtual for entry in entries}:
        result.append("Virtual and wallclock times stand side by side here: compare their errors, not their times.")
    for name in ("data", "network", "init_seed"):
        values = sorted({str(getattr(e.settings, name)) for e in entries if e.settings is not None})
        if len(values) > 1:
            result.append(f"The runs differ in {name} ({', '.join(values)}): they do not solve the same problem.")
    short = [c.label for c in chosen if len(c.runs) > 1 and len(joint(c.runs)) < len(c.runs)]
    if short:
        result.append(
            f"Not every seed of {', '.join(short)} has come as far as the others: those are no part of a mean."
        )
    return result


def joint(runs: Sequence[ReportRun]) -> list[ReportRun]:
    ends = [float(run.curves["time"][-1]) if len(run.curves["time"]) else 0.0 for run in runs]
    return [run for run, end in zip(runs, ends, strict=True) if end > 0 and end >= JOINT * max(ends)]


def joined(choice: Choice[ReportRun]) -> tuple[dict[str, Curve], list[dict[str, Curve]]]:
    """Return the mean over the seeds on the first one's times, as far as all go, and the seeds' own curves."""
    runs = joint(choice.runs)
    if len(choice.runs) == 1 or not runs:
        return choice.runs[0].curves, []
    end = min(float(run.curves["time"][-1]) for run in runs)
    time = runs[0].curves["time"]
    time = time[time <= end]
    mean = {
        name: np.mean([np.interp(time, run.curves["time"], run.curves[name]) for run in runs], axis=0)
        for name in (*PANELS, "bytes")
    }
    return {"time": time, **mean}, [run.curves for run in choice.runs]


def headline(model: ReportData) -> str:
    """The main finding in one sentence."""
    if not any(math.isfinite(choice.score) for choice in model.choices):
        launched = [entry for entry in model.entries if entry.attached is not None]
        told = [f"{e.label}: {e.scan.steps} steps, {e.scan.exchanges} exchanges." for e in launched]
        return " ".join(told) or "Nothing has been evaluated yet."
    # The hardest level that a comparator reached too; where there is none, the hardest of all.
    for bound in (False, True):
        for level in reversed(model.levels):
            raced = [(s, c) for c in model.choices if (s := speedup(c, level, model.against)) and s.bound == bound]
            if raced:
                return _race(model, level, *max(raced, key=lambda pair: pair[0].factor))
    best = min(model.choices, key=lambda choice: choice.score)
    if len(model.choices) == 1:
        return f"{best.label} reaches a test error of {100 * best.score:.3g} %."
    return f"{best.label} has the smallest test error: {100 * best.score:.3g} %."


def _race(model: ReportData, level: float, gain: Speedup, winner: Choice[ReportRun]) -> str:
    own = time_to(winner, level)
    unit = f"{'virtual ' if model.clock == 'virtual time' else ''}{WORDS[model.unit]}"
    reached, theirs = f"reaches {100 * level:.3g} % test error", model.show_time(own * gain.factor)
    if gain.bound:
        return f"{winner.label} {reached} in {model.show_time(own)} {unit}; {gain.against} did not in {theirs}."
    if gain.factor <= 1.05:
        return f"No method {reached} sooner than {gain.against}."
    times = f"in {model.show_time(own)} instead of {theirs} {unit}"
    return f"{winner.label} {reached} {gain.factor:.1f} times sooner than {gain.against}: {times}."
