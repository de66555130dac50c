"""`easgd bench worth`: how much of data-parallel training's gain a worker keeps, and at how many bytes.

DistributedDataParallel on p workers reaches a lower loss after the same number of steps than one process does. A
method's worth is the share of that gain which its center reaches: 0 is one process, 1 is data-parallel training. Both
ends, and every method, are trained on the same batches on the virtual clock, so no figure depends on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from easgd.bench import Row
from easgd.bench.worth.runs import Moments, Records, Setting

DEFAULT_RECORDS = Path("runs/worth/records.jsonl")


def settings(job: str, workers: int, steps: int, seed: int) -> Iterator[Setting]:
    """Yield the table's rows: both ends first."""
    ends: list[tuple[str, dict[str, object]]] = [("alone", {}), ("ddp", {})]
    methods: list[tuple[str, dict[str, object]]] = [
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
        yield Setting(job, workers, key, options, 1.0, "kept", steps, seed)
    for key, options in (*ends, methods[3], methods[7]):
        yield Setting(job, workers, key, options, 2.0, "kept", steps, seed)
    others: tuple[Moments, ...] = ("averaged", "reset")
    for moments in others:
        for key, options in (methods[3], methods[7]):
            yield Setting(job, workers, key, options, 1.0, moments, steps, seed)


def rows(job: str = "gpt", workers: int = 2, steps: int = 400, seed: int = 0, out: Path = DEFAULT_RECORDS) -> list[Row]:
    """Train every setting that `out` does not hold yet; return each with its share of the gain and of the bytes.

    The ends of the scale are those of the same learning rate: one process at the job's own, data-parallel training at
    the better of the rates.
    """
    results = list(Records(out).results(settings(job, workers, steps, seed)))
    alone = min(r["value"] for s, r in results if s.method == "alone")
    ddp = min((r for s, r in results if s.method == "ddp"), key=lambda r: r["value"])
    out_rows = []
    for setting, result in results:
        share = (alone - result["value"]) / (alone - ddp["value"])
        traffic = result["bytes"] / ddp["bytes"]
        case = f"{job} p={workers} {setting.label}, {traffic:.3f} of DDP's bytes"
        out_rows.append(Row(case, result["value"], "nats" if job == "gpt" else "error", ddp["value"], share))
    return out_rows
