"""`easgd bench worth`: how much of data-parallel training's gain a worker keeps, and at how many bytes.

DistributedDataParallel on p workers reaches a lower loss after the same number of steps than one process does. A
method's worth is the share of that gain which its center reaches: 0 is one process, 1 is data-parallel training. Both
ends, and every method, are trained on the same batches on the virtual clock, so no figure depends on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from easgd.bench import Row
from easgd.bench.worth import summary
from easgd.bench.worth.jobs import Images
from easgd.bench.worth.runs import Moments, Records, Setting
from easgd.launch.output import say

FOLDER, RECORDS = Path("runs/worth"), "records.jsonl"
Options = dict[str, Any]
Line = tuple[str, Options, float, Moments, str | None]
"""Method, its options, multiple of the learning rate, moments, compression."""


def settings(job: str, workers: int, steps: int, seed: int) -> Iterator[Setting]:
    """Yield the table's rows: both ends first."""
    for key, options, rate, moments, compression in _images(workers) if job == Images.name else _text(workers, steps):
        yield Setting(job, workers, key, options, rate, moments, steps, seed, compression)


def _text(workers: int, steps: int) -> Iterator[Line]:
    ends: list[tuple[str, Options]] = [("alone", {}), ("ddp", {})]
    methods: list[tuple[str, Options]] = [
        ("easgd", {"period": 10}),
        ("easgd", {"period": 10, "moving_rate": 0.9}),
        ("localsgd", {"period": 1}),
        ("localsgd", {"period": 10}),
        ("localsgd", {"period": 30}),
        ("localsgd", {"period": 10, "first_phase": steps // 4}),
        ("diloco", {"period": 10}),
        ("diloco", {"period": 30}),
        ("diloco", {"period": 30, "outer_lr": 1.0, "outer_momentum": 0.5}),
        ("asyncdiloco", {"period": 30, "every": workers}),
    ]
    for key, options in (*ends, *methods):
        yield key, options, 1.0, "kept", None
    # What averages in rounds bears a larger rate than one process does; both ends get the same chance.
    for rate in (2.0, 4.0):
        for key, options in (*ends, methods[3], methods[4], methods[7]):
            yield key, options, rate, "kept", None
    others: tuple[Moments, ...] = ("averaged", "reset")
    for moments in others:
        for key, options in (methods[3], methods[7]):
            yield key, options, 1.0, moments, None
    # A thirtieth of the bytes in other ways than a period of 30: shorter periods, fewer bits.
    for period, compression in ((8, "int8"), (4, "int4"), (2, "int2")):
        yield "localsgd", {"period": period}, 1.0, "kept", compression
    for rate in (1.5, 2.0):
        yield "localsgd", {"period": 4}, rate, "kept", "int4"
        yield "localsgd", {"period": 1}, rate, "kept", None
        # At the rate of one process p workers and their center move at p/(p + 1) of its speed (`theory.center_speed`).
        yield "easgd", {"period": 10}, rate, "kept", None


def _images(workers: int) -> Iterator[Line]:
    """A gradient of this network costs ten times the GPT's, so there are fewer rows: those with SGD's momentum."""
    for rate in (1.0, 2.0):
        for key in ("alone", "ddp"):
            yield key, {}, rate, "kept", None
    for rate in (1.0, 2.0):
        yield "eamsgd", {"period": 10, "momentum": 0.9}, rate, "kept", None
        yield "localsgd", {"period": 10}, rate, "kept", None
        yield "localsgd", {"period": 4}, rate, "kept", "int4"
    yield "eamsgd", {"period": 10, "momentum": 0.9, "moving_rate": 0.9}, 1.0, "kept", None
    yield "localsgd", {"period": 30}, 1.0, "kept", None
    yield "diloco", {"period": 30}, 1.0, "kept", None
    yield "asyncdiloco", {"period": 30, "every": workers}, 1.0, "kept", None
    yield "localsgd", {"period": 1}, 2.0, "kept", None


def rows(job: str = "gpt", workers: int = 2, steps: int = 400, seed: int = 0, out: Path = FOLDER) -> list[Row]:
    """Train every setting that the records in `out` do not hold yet, write their page, return the rows."""
    records = Records(out / RECORDS)
    results = list(records.results(settings(job, workers, steps, seed)))
    say(f"all that was trained: {summary.write(out, records.trained)}")
    return summary.rows(results)
