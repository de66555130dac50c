"""`easgd bench link --race`: real seconds until a target, for every case on every link.

Methods on a process group are synchronous: the link changes when their numbers come, not the numbers. So each trains
once, on the bare link, and a few steps on each slow one; the time to the target is the number of steps of the one with
the step times of the other. `whole` trains them to the end everywhere. Our methods are asynchronous: what they compute
depends on the link, and they train on each.

Records are JSON lines; a run whose record is there is not run again, so an interrupted race goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from easgd.bench.link import runs
from easgd.bench.link.cases import ALONE, Case
from easgd.bench.link.contestant import Spec
from easgd.bench.link.jobs import JOBS
from easgd.bench.link.laboratory import Laboratory
from easgd.files import read_json_lines

SHORT_STEPS, SHORT_SECONDS = 12, 10.0
ONCE = 2.5
FILE = "race.jsonl"
Say = Callable[[str], None]


def plan(
    jobs: Sequence[str], cases: Sequence[Case], speeds: Sequence[float | None], *,
    whole: bool = False, limit: float | None = None, steps: int | None = None, seed: int = 0,
) -> list[Spec]:  # fmt: skip
    """Return the runs of a race; those that need Ray last, so that it does not run beside the others."""
    found = [
        spec
        for job in jobs
        for one in cases
        if one.fits(JOBS[job].momentum)
        for spec in _specs(job, one, speeds, whole, limit, steps, seed)
    ]
    ours = {one.name for one in cases if one.method is not None}
    return sorted(found, key=lambda spec: spec.case in ours)


def _specs(
    name: str, one: Case, speeds: Sequence[float | None], whole: bool, limit: float | None, steps: int | None, seed: int
) -> Iterator[Spec]:
    job = JOBS[name]
    count = min(steps or job.steps, job.steps)
    # One shard, on the machine that keeps the weights: reading the center does not use the link.
    shards, every = 1 if one.method else None, min(job.every, count)
    rival = one.method is None and one.name != ALONE and not whole
    # Who trains once for all links may take longer: a step that waits for every gradient is slow on the bare link too.
    seconds = (limit or job.limit) * (ONCE if rival else 1)
    full = Spec(name, one.name, None, count, every, seconds, shards=shards, seed=seed)
    if one.name == ALONE:
        yield full
        return
    if rival or None in speeds:
        yield full
    for mbit in speeds:
        if mbit is not None and rival:
            short = min(max(SHORT_STEPS, one.least), count)
            yield Spec(name, one.name, mbit, short, one.least, SHORT_SECONDS, measured=False, seed=seed)
        elif mbit is not None:
            yield msgspec.structs.replace(full, mbit=mbit)


def run(specs: Sequence[Spec], out: Path, say: Say, *, both: bool = False) -> dict[Spec, dict[str, Any]]:
    """Do what has no record yet; return all records of the file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    known = records(out)
    todo = [spec for spec in specs if not any(_covers(one, spec) for one in known)]
    if todo:
        say(f"{len(specs) - len(todo)} of {len(specs)} runs are in {out}; {len(todo)} to do")
        with Laboratory() as lab:
            for number, spec in enumerate(todo, 1):
                record = runs.run(lab, spec, both=both)
                with open(out, "a") as file:
                    file.write(json.dumps(record) + "\n")
                say(f"{number}/{len(todo)} {_line(record)}")
        known = records(out)
    return known


def _covers(known: Spec, spec: Spec) -> bool:
    """Whether a run that was done is the one that is asked for, with the same budget or a larger one."""
    same = msgspec.structs.replace(known, limit=spec.limit, steps=spec.steps) == spec
    return same and known.limit >= spec.limit and known.steps >= spec.steps


def records(path: Path) -> dict[Spec, dict[str, Any]]:
    """Return the records of a file by what was run; those of failed runs are left out, so that they are repeated."""
    return {msgspec.convert(record, Spec): record for record in read_json_lines(path) if "failed" not in record}


def _line(record: dict[str, Any]) -> str:
    mbit = "bare link" if record["mbit"] is None else f"{record['mbit']:g} Mbit/s"
    where = f"{record['job']}, {record['case']}, {mbit}"
    if "failed" in record:
        return f"{where}: failed: {record['failed']}"
    best = min((point[2] for point in record["points"]), default=None)
    measured = "" if best is None else f", best {best:.3f}"
    return f"{where}: {record['taken']} steps in {record['seconds']:.1f} s{measured}"
