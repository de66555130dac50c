"""`easgd bench link --throughput`: images per second of a worker with the MLP of 9 M parameters, by case and link.

The reference is a process on each machine that trains alone at the same time. The share of time that a worker waits is
what the rate lacks to that reference. Times are those of whole periods, after the first where there are several.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from easgd.bench import Row
from easgd.bench.link.cases import ALONE, Case
from easgd.bench.link.contestant import Spec
from easgd.bench.link.jobs import JOBS
from easgd.bench.link.summary import link_name

JOB, SECONDS, FILE = "mlp", 20.0, "throughput.jsonl"


def plan(cases: Sequence[Case], speeds: Sequence[float | None], seconds: float = SECONDS) -> list[Spec]:
    """Return the runs: of the reference one, of each case one on each link."""
    found = [Spec(JOB, ALONE, None, 10**6, 10, seconds, measured=False)]
    for one in cases:
        if one.name != ALONE:
            found += [Spec(JOB, one.name, mbit, 10**6, one.least, seconds, measured=False) for mbit in speeds]
    ours = {one.name for one in cases if one.method is not None}
    return sorted(found, key=lambda spec: spec.case in ours)


def rate(times: Sequence[float], one: Case, batch: int) -> float:
    """Return images per second over whole cycles; the first one warms up if others follow."""
    body, cycle = times[one.head :], one.cycle
    whole = len(body) // cycle * cycle
    used = body[cycle:whole] if whole > cycle else body[:whole] or times
    return batch * len(used) / sum(used)


def rows(records: Mapping[Spec, dict[str, Any]], cases: Sequence[Case]) -> list[Row]:
    """Return the mean rate of both workers of each run, relative to the process alone."""
    titles = {one.name: one for one in cases}
    rates = {spec: _mean(record, titles[spec.case]) for spec, record in records.items() if spec.case in titles}
    alone = next((value for spec, value in rates.items() if spec.case == ALONE), float("nan"))
    return [
        Row(f"{titles[spec.case].title}, {link_name(spec.mbit)}", value, "images/s", alone, value / alone)
        for spec, value in rates.items()
    ]


def _mean(record: Mapping[str, Any], one: Case) -> float:
    both = [record["times"], *([record["other"]["times"]] if record.get("other") else [])]
    return statistics.mean(rate(times, one, JOBS[JOB].batch) for times in both)


def markdown(found: Sequence[Row], cases: Sequence[Case], speeds: Sequence[float | None]) -> str:
    """Return the table: images per second of a worker, and in brackets the share of time that it waits."""
    values = {row.case: row for row in found}
    lines = [f"| images/s a worker (time waiting) | {' | '.join(map(link_name, speeds))} |"]
    lines.append("|---|" + "---|" * len(speeds))
    for one in cases:
        cells = []
        for mbit in speeds:
            row = values.get(f"{one.title}, {link_name(None if one.name == ALONE else mbit)}")
            cells.append("–" if row is None else f"{row.value:.3g} ({100 * max(0.0, 1 - row.ratio):.0f} %)")
        lines.append(f"| {one.title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
