"""The race's records as times to a target: a table in Markdown, a figure, and who was first on each link."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easgd.bench import Row
from easgd.bench.link.cases import ALONE, OURS, RIVALS, Case, case
from easgd.bench.link.contestant import Spec
from easgd.bench.link.jobs import JOBS
from easgd.report.figure import Axis, FigureSpec, LineSeries, Panel, PanelRow
from easgd.report.render_matplotlib import write_figure
from easgd.report.style import look_at

Records = Mapping[Spec, dict[str, Any]]
COMPOSED = "~"


@dataclass(frozen=True)
class Time:
    """Seconds to a target; infinite if it was not reached within `within` seconds."""

    seconds: float
    composed: bool = False
    """Whether it is the steps of one run with the step times of another."""
    within: float = math.nan

    @property
    def least(self) -> float:
        """The seconds, or those after which the run ended: it may have reached the target the moment after."""
        return self.seconds if math.isfinite(self.seconds) or math.isnan(self.within) else self.within

    def __str__(self) -> str:
        if math.isfinite(self.seconds):
            return f"{COMPOSED if self.composed else ''}{self.seconds:{'.0f' if self.seconds >= 100 else '.3g'}}"
        return "–" if math.isnan(self.within) else f"> {self.within:.0f}"


def crossing(points: Sequence[Sequence[float]], target: float) -> tuple[float, float] | None:
    """Return the seconds and steps at which a measure first falls to the target, between two points by a line."""
    before: Sequence[float] | None = None
    for point in points:
        if point[2] <= target:
            if before is None or before[2] == point[2]:
                return point[0], point[1]
            share = (before[2] - target) / (before[2] - point[2])
            return before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])
        before = point
    return None


def seconds_of(times: Sequence[float], steps: float, cycle: int = 1) -> float:
    """Return how long this many steps take: the first as they were measured, the rest as those after.

    That is the median of the later half, or the mean of the last cycle where not all steps do the same.
    """
    known = min(len(times), math.floor(steps))
    later = statistics.median(times[len(times) // 2 :]) if cycle == 1 else statistics.mean(times[-cycle:])
    return sum(times[:known]) + (steps - known) * later


def time_to(records: Records, job: str, name: str, mbit: float | None, target: float) -> Time:
    """Return the time of a case on a link."""
    ordered = sorted(records.items(), key=lambda item: item[0].limit)  # of two runs, the one with more time counts
    mine = {spec: record for spec, record in ordered if (spec.job, spec.case) == (job, name)}
    whole = {spec.mbit: record for spec, record in mine.items() if spec.measured}
    short = {spec.mbit: record for spec, record in mine.items() if not spec.measured}
    if name == "alone" or (mbit in whole):
        record = whole.get(mbit, whole.get(None))
        if record is None:
            return Time(math.inf)
        found = crossing(record["points"], target)
        return Time(math.inf, within=record["seconds"]) if found is None else Time(found[0])
    if mbit in short and None in whole and (found := crossing(whole[None]["points"], target)) is not None:
        return Time(seconds_of(short[mbit]["times"], found[1], case(name).cycle), composed=True)
    return Time(math.inf)


def taking_part(records: Records) -> list[Case]:
    """Return the cases that have records: PyTorch's first, then ours in the order of the names."""
    names = {spec.case for spec in records}
    usual = [name for name in (ALONE, *RIVALS, *OURS) if name in names]
    return [case(name) for name in (*usual, *sorted(names - {*usual}))]


def links(records: Records) -> list[float | None]:
    """Return the speeds of all links that have records, the bare link last: a page shows what earlier runs have."""
    speeds = {spec.mbit for spec in records}
    return [*sorted(speed for speed in speeds if speed is not None), *([None] if None in speeds else [])]


def table(records: Records, job: str, target: float, cases: Sequence[Case], speeds: Sequence[float | None]) -> str:
    """Return one table: a row for each case, a column for each link, the first of each link in bold if it is known."""
    rows = {one: [time_to(records, job, one.name, mbit, target) for mbit in speeds] for one in cases}
    best = [min((times[k].least for times in rows.values()), default=math.inf) for k in range(len(speeds))]
    lines = [f"| seconds to {_target(job, target)} | {' | '.join(map(link_name, speeds))} |"]
    lines.append("|---|" + "---|" * len(speeds))
    for one, times in rows.items():
        shown = [
            f"**{t}**" if math.isfinite(t.seconds) and t.seconds == b else str(t)
            for t, b in zip(times, best, strict=True)
        ]
        lines.append(f"| {one.title} | {' | '.join(shown)} |")
    lines.append(f"| *DDP over the best of ours* | {' | '.join(_ratios(rows, len(speeds)))} |")
    return "\n".join(lines)


def _ratios(rows: Mapping[Case, Sequence[Time]], links: int) -> list[str]:
    found = []
    for k in range(links):
        ddp = next((times[k].seconds for one, times in rows.items() if one.name == "ddp"), math.inf)
        ours = min((times[k].seconds for one, times in rows.items() if one.method is not None), default=math.inf)
        found.append(f"{ddp / ours:.3g}" if math.isfinite(ddp) and math.isfinite(ours) else "–")
    return found


def rows(records: Records, cases: Sequence[Case], speeds: Sequence[float | None]) -> list[Row]:
    """Return every time to a target that was reached, relative to DDP on the same link."""
    found = []
    for job in sorted({spec.job for spec in records}):
        for target, mbit in itertools.product(JOBS[job].targets, speeds):
            ddp = time_to(records, job, "ddp", mbit, target).seconds
            for one in cases:
                mine = time_to(records, job, one.name, mbit, target).seconds
                if math.isfinite(mine):
                    name = f"{job} to {target:g}, {link_name(mbit)}, {one.title}"
                    found.append(Row(name, mine, "s", ddp, mine / ddp))
    return found


def figure(records: Records, cases: Sequence[Case], speeds: Sequence[float | None]) -> FigureSpec:
    """Return time to target against bandwidth: a row for each job, a panel for each of its targets."""
    x = Axis("link [Mbit/s]", names=["bare" if mbit is None else f"{mbit:g}" for mbit in speeds])
    grid = []
    for job in sorted({spec.job for spec in records}):
        # Every row has a legend: places are counted in it, so that its few cases have colours of their own.
        ran = {spec.case for spec in records if spec.job == job}
        fitting = [one for one in cases if one.name in ran]
        panels = []
        for target in JOBS[job].targets:
            series = []
            for place, one in enumerate(fitting):
                times = [time_to(records, job, one.name, mbit, target).seconds for mbit in speeds]
                kept = [k for k, seconds in enumerate(times) if math.isfinite(seconds)]
                if kept:
                    series.append(LineSeries(kept, [times[k] for k in kept], one.title, look_at(place), marked=True))
            name = f"{job} {target:g}"
            y = Axis(f"seconds to {_target(job, target)}", "log")
            panels.append(Panel(name, x, y, series, title=JOBS[job].title))
        grid.append(PanelRow(panels, legend_columns=3))
    return FigureSpec(grid, size=(8.0, 3.8 * len(grid)))


def write(records: Records, cases: Sequence[Case], speeds: Sequence[float | None], out: Path) -> str:
    """Write `race.md` and the figure `race`; return the text."""
    parts = []
    for job in JOBS:
        if ran := {spec.case for spec in records if spec.job == job}:
            fitting = [one for one in cases if one.name in ran]
            parts.append(f"### {JOBS[job].title}")
            parts += [table(records, job, target, fitting, speeds) for target in JOBS[job].targets]
    loads = [record["load"] for record in records.values()]
    parts.append(
        f"`{COMPOSED}`: the steps of the run on the bare link with this link's step times. `>`: not within the run. "
        f"Load of the machine when runs ended: {statistics.median(loads):.1f} (median), {max(loads):.1f} (most)."
    )
    text = "\n\n".join(parts) + "\n"
    (out / "race.md").write_text(text)
    write_figure(figure(records, cases, speeds), out / "race")
    return text


def link_name(mbit: float | None) -> str:
    """Return how a link is called in tables."""
    return "bare link" if mbit is None else f"{mbit:g} Mbit/s"


def _target(job: str, target: float) -> str:
    measures = JOBS[job].measures
    return f"{100 * target:g} % {measures}" if "error" in measures else f"{measures} {target:g}"
