"""`easgd bench link --throughput`: images per second of a worker with the MLP of 9 M parameters, by case and link.

The reference is a process on each machine that trains alone at the same time. What a rate lacks to it is time spent in
exchanges, which our workers count, and the work of others on the same core: Ray, the center. Times are those of whole
periods, after the first where there are several.
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


def steady(values: Sequence[float], one: Case) -> Sequence[float]:
    """Return the values of whole cycles; the first one warms up if others follow."""
    body, cycle = values[one.head :], one.cycle
    whole = len(body) // cycle * cycle
    return body[cycle:whole] if whole > cycle else body[:whole] or values


def rate(times: Sequence[float], one: Case, batch: int) -> float:
    """Return images per second over whole cycles."""
    used = steady(times, one)
    return batch * len(used) / sum(used)


def in_exchange(record: Mapping[str, Any], one: Case) -> float | None:
    """Return the share of both workers' time that their training spent in exchanges; None where nobody counted it."""
    both = [run for run in (record, record.get("other")) if run and "exchanging" in run]
    total = sum(sum(steady(run["times"], one)) for run in both)
    return sum(sum(steady(run["exchanging"], one)) for run in both) / total if both else None


def rows(records: Mapping[Spec, dict[str, Any]], cases: Sequence[Case]) -> list[Row]:
    """Return the mean rate of both workers of each run, relative to the process alone that trained for as long."""
    titles = {one.name: one for one in cases}
    rates = {spec: _mean(record, titles[spec.case]) for spec, record in records.items() if spec.case in titles}
    alone = {spec.limit: value for spec, value in rates.items() if spec.case == ALONE}
    found = []
    for spec, value in rates.items():
        reference = alone.get(spec.limit, float("nan"))
        title = f"{titles[spec.case].title}, {link_name(spec.mbit)}"
        found.append(Row(title, value, "images/s", reference, value / reference))
    return found


def _mean(record: Mapping[str, Any], one: Case) -> float:
    both = [record["times"], *([record["other"]["times"]] if record.get("other") else [])]
    return statistics.mean(rate(times, one, JOBS[JOB].batch) for times in both)


def markdown(records: Mapping[Spec, dict[str, Any]], cases: Sequence[Case], speeds: Sequence[float | None]) -> str:
    """Return the table: images per second of a worker, how far it is behind a process alone, its time in exchanges."""
    values = {row.case: row for row in rows(records, cases)}
    runs = {(spec.case, spec.mbit): record for spec, record in records.items()}
    lines = [f"| images/s a worker (behind one alone; in exchanges) | {' | '.join(map(link_name, speeds))} |"]
    lines.append("|---|" + "---|" * len(speeds))
    for one in cases:
        cells = []
        for mbit in (None if one.name == ALONE else speed for speed in speeds):
            row = values.get(f"{one.title}, {link_name(mbit)}")
            share = in_exchange(runs[one.name, mbit], one) if row is not None else None
            counted = "" if share is None else f"; {100 * share:.1f} %"
            cells.append("–" if row is None else f"{row.value:.0f} ({100 * max(0.0, 1 - row.ratio):.0f} %{counted})")
        lines.append(f"| {one.title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
