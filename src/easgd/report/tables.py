"""The report's tables. Each function makes one, or None where the runs have nothing to say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from easgd.report.data import ReportData
from easgd.report.entry import ReportRun
from easgd.report.levels import reached, speedup, time_to
from easgd.report.table import Cell, Table, cell, percent, size
from easgd.training.config import FIELDS
from easgd.training.select import Choice

PER_STEPS = 400
"""The paper gives seconds per 400 batches (CIFAR)."""
HEAD = [("method", "method"), ("workers", "p"), ("period", "τ"), ("lr", "η")]


def _head(choice: Choice[ReportRun]) -> list[Cell]:
    """The cells under HEAD."""
    period = None if choice.sequential else _setting(choice, "period")
    return [cell(choice.label), cell(_setting(choice, "workers")), cell(period), cell(choice.lr, "g")]


def _setting(choice: Choice[ReportRun], name: str) -> Any:
    return choice.runs[0].setting(name)


def best(model: ReportData) -> Table:
    """The smallest test error of every method."""
    several = any(len(choice.runs) > 1 for choice in model.choices)
    columns = [
        *HEAD, ("seeds", "seeds"), ("best_error", "best error"), *([("lowest_error", "lowest seed")] * several),
        ("best_seconds", f"at [{model.unit}]"), ("final_error", "last error"), ("state", "state"),
    ]  # fmt: skip
    rows = []
    for choice in sorted(model.choices, key=lambda c: c.score):
        at = max(reached(entry, entry.best) for entry in choice.counted)
        lowest = min(entry.best for entry in choice.counted)
        final = [float(e.curves["test_error"][-1]) for e in choice.counted if len(e.curves["test_error"])]
        rows.append(
            [
                *_head(choice), cell(len(choice.counted)), percent(choice.score), *([percent(lowest)] * several),
                (at, model.show_time(at)), percent(sum(final) / len(final) if final else math.nan),
                cell(", ".join(sorted({entry.state for entry in choice.runs}))),
            ]
        )  # fmt: skip
    note = (
        "Test error of the center: the mean over the seeds of each run's smallest; η is the rate with the smallest. "
        "Seeds that are not over count only where none is."
    )
    return Table("best-errors", "Best test error", columns, rows, note)


def times(model: ReportData) -> Table:
    """Time to each level, with the speed-up beside it; the file has one row per method and level."""
    columns = [("method", "method")]
    for level in model.levels:
        name = f"{100 * level:.3g} %"
        columns += [(f"seconds_to_{name}", f"to {name} [{model.unit}]"), (f"speedup_at_{name}", "speed-up")]
    rows: list[list[Cell]] = []
    lines: list[list[Any]] = []
    for choice in model.choices:
        head, seeds = _head(choice), len(choice.counted)
        row = head[:1]
        for level in model.levels:
            time, gain = time_to(choice, level), speedup(choice, level, model.against)
            hits = sum(math.isfinite(reached(entry, level)) for entry in choice.counted)
            some = f" ({hits} of {seeds})" if 0 < hits < seeds else ""
            row.append((time, ("never reached" if math.isinf(time) else model.show_time(time)) + some))
            row.append((gain.factor if gain else None, str(gain) if gain else "–"))
            numbers = (gain.factor, int(gain.bound), gain.against) if gain else (None, None, None)
            lines.append([*(value for value, _ in head), level, time, hits, seeds, *numbers])
        rows.append(row)
    names = [name for name, _ in HEAD]
    names += ["level", "seconds", "seeds_reached", "seeds", "speedup", "lower_bound", "against"]
    return Table("time-to-error", "Time to a test error", columns, rows, _against(model), (names, lines))


def _against(model: ReportData) -> str:
    if not model.against:
        return "No method with one worker is among the runs, so there are no speed-ups; --baseline names another."
    names = ", ".join(choice.label for choice in model.against)
    which = f"the fastest of {names}" if len(model.against) > 1 else names
    return (
        f"Median over the seeds. Speed-ups are against {which} at the same level; “>” where it was watched but "
        "never got there."
    )


def rates(model: ReportData) -> Table | None:
    """Best error of every learning rate that was tried."""
    if all(len(choice.tried) < 2 for choice in model.choices):
        return None
    rows: list[list[Cell]] = [
        [cell(c.label), cell(lr, "g"), percent(score), (int(lr == c.lr), "chosen" if lr == c.lr else "")]
        for c in model.choices for lr, score in c.tried.items()
    ]  # fmt: skip
    columns = [("method", "method"), ("lr", "η"), ("best_error", "best error"), ("chosen", "")]
    return Table("learning-rates", "Learning rates tried", columns, rows)


def breakdowns(model: ReportData) -> Table | None:
    """Where the time went, in the paper's form."""
    rows = []
    for choice in model.choices:
        split = choice.runs[0].scan.breakdown
        if not split.steps:
            continue
        parts = split.compute, split.data, split.communication
        share = split.communication / sum(parts) if sum(parts) else math.nan
        seconds = [cell(part, ".4g") for part in (*parts, split.waiting)]
        form = "/".join(f"{part * PER_STEPS / split.steps:.3g}" for part in parts)
        rows.append([*_head(choice), cell(split.steps), *seconds, cell(form), percent(share)])
    columns = [
        *HEAD, ("steps", "steps"), ("compute", "compute [s]"), ("data", "data [s]"),
        ("communication", "comm. [s]"), ("waiting", "waiting [s]"),
        (f"per_{PER_STEPS}_steps", f"per {PER_STEPS} steps [s]"), ("communication_share", "comm. share"),
    ]  # fmt: skip
    note = (
        "Means over the workers of a method's first seed. Communication is what could not be hidden behind the "
        f"gradient and includes waiting for others; the last but one column is compute/data/communication in seconds "
        f"per {PER_STEPS} steps, as in the paper's table."
    )
    return Table("time-breakdown", "Where the time went", columns, rows, note) if rows else None


def traffic(model: ReportData) -> Table | None:
    """What was sent, and how far the workers were from the center."""
    rows = []
    for choice in model.choices:
        scan = choice.runs[0].scan
        if not scan.steps:
            continue
        staleness, distance = scan.staleness.points()[1], scan.distance.points()[1]
        mean = sum(staleness) / len(staleness) if staleness else None
        rows.append(
            [
                *_head(choice), size(scan.bytes), size(scan.bytes / scan.steps), cell(scan.exchanges),
                cell(mean, ".2f"), cell(distance[-1] if distance else None, ".3g"),
            ]
        )  # fmt: skip
    columns = [
        *HEAD, ("bytes", "bytes"), ("bytes_per_step", "per step"), ("exchanges", "exchanges"),
        ("staleness", "mean staleness"), ("distance", "last distance"),
    ]  # fmt: skip
    return Table("traffic", "Exchanges", columns, rows, "A method's first seed.") if rows else None


def events(model: ReportData) -> Table | None:
    """Deaths, joins, refused exchanges: everything the workers recorded that is not a step."""
    rows: list[list[Cell]] = [
        [cell(entry.name), cell(event.event), cell(event.time, ".2f"), cell(event.worker), cell(event.detail)]
        for entry in model.entries for event in entry.scan.events
    ]  # fmt: skip
    kinds: Counter[str] = sum((entry.scan.counts for entry in model.entries), Counter())
    note = ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
    if len(rows) < kinds.total():
        note += f". The first {len(rows)} are listed."
    columns = [("run", "run"), ("event", "event"), ("time", "time [s]"), ("worker", "worker"), ("detail", "detail")]
    return Table("events", "Events", columns, rows, note) if rows else None


def nodes(model: ReportData) -> Table | None:
    """Which workers were on which machine, where the records say."""
    rows: list[list[Cell]] = [
        [cell(entry.name), cell(node), cell(" ".join(map(str, sorted(workers))))]
        for entry in model.entries for node, workers in sorted(entry.scan.nodes.items())
    ]  # fmt: skip
    return Table("nodes", "Nodes", [("run", "run"), ("node", "node"), ("workers", "workers")], rows) if rows else None


def runs(model: ReportData) -> Table:
    """Every run, with what is missing in its folder."""
    rows = []
    for entry in model.entries:
        time = entry.curves["time"]
        notes = "; ".join(filter(None, [str(entry.status.get("reason") or ""), *entry.notes]))
        lr, seed = entry.setting("lr"), entry.setting("seed")
        last = float(time[-1]) if len(time) else math.nan
        rows.append(
            [
                cell(entry.name), cell(entry.label), cell(lr, "g"), cell(seed), cell(entry.state), cell(len(time)),
                (last, "–" if math.isnan(last) else model.show_time(last)), percent(entry.best), cell(notes),
            ]
        )  # fmt: skip
    columns = [
        ("run", "run"), ("method", "method"), ("lr", "η"), ("seed", "seed"), ("state", "state"),
        ("evaluations", "evaluations"), ("seconds", f"until [{model.unit}]"), ("best_error", "best error"),
        ("notes", "notes"),
    ]  # fmt: skip
    return Table("runs", "Runs", columns, rows, "A run that was killed still says “running”.")


def settings(model: ReportData) -> Table:
    """One row per setting, a column per method; what is the same everywhere is written once."""
    known = [choice for choice in model.choices if choice.config is not None]
    rows = []
    for name in FIELDS:
        found = [_setting(choice, name) for choice in known]
        values = ["" if v in (None, ()) else f"{v:g}" if isinstance(v, float) else str(v) for v in found]
        if any(values):
            same = len(set(values)) == 1
            rows.append([cell(name), *((v, "″" if same and i else v) for i, v in enumerate(values))])
    return Table("settings", "Settings", [("setting", "setting"), *((c.label, c.label) for c in known)], rows)


def environments(model: ReportData) -> Table | None:
    """The machines and versions, one row per kind."""
    names = ("easgd", "torch", "python", "platform", "cpus", "git")
    kinds = Counter(
        tuple(str(entry.environment.get(name, "–")) for name in names) for entry in model.entries if entry.environment
    )
    rows: list[list[Cell]] = [[*map(cell, kind), cell(count)] for kind, count in kinds.items()]
    return Table("environment", "Environment", [*((n, n) for n in names), ("runs", "runs")], rows) if rows else None


MAKERS: Sequence[Callable[[ReportData], Table | None]] = (
    times, best, rates, breakdowns, traffic, events, nodes, runs, settings, environments,
)  # fmt: skip


def make_all(model: ReportData) -> dict[str, Table]:
    """Return every table that has something to say, by its name."""
    made = (maker(model) for maker in MAKERS)
    return {table.name: table for table in made if table is not None}
