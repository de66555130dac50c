"""The records as a page: a table for each job and number of workers, the share of the gain beside the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from easgd.bench import Row
from easgd.bench.worth.jobs import JOBS
from easgd.bench.worth.runs import Setting

Result = Mapping[str, Any]
Trained = tuple[Setting, Result]
ENDS = ("alone", "ddp")
TITLE = """# The worth of a worker

Made by `easgd bench worth` from the records beside it: 0 % is one process at its best learning rate, 100 %
data-parallel training at its best. One seed.

"""


def shares(results: Sequence[Trained]) -> list[tuple[Setting, Result, float, float]]:
    """Return each setting with its share of data-parallel training's gain and of its bytes.

    Both ends of the scale are the best that was found over the learning rates: one process at its best rate is 0,
    data-parallel training at its best rate is 1.
    """
    alone = min(result["value"] for setting, result in results if setting.method == "alone")
    ddp = min((result for setting, result in results if setting.method == "ddp"), key=lambda result: result["value"])
    gain = alone - ddp["value"]
    return [(s, r, (alone - r["value"]) / gain, r["bytes"] / ddp["bytes"]) for s, r in results]


def rows(results: Sequence[Trained]) -> list[Row]:
    """Return the rows of one job; the ratio is the share of the gain."""
    found = []
    ddp = min(result["value"] for setting, result in results if setting.method == "ddp")
    for setting, result, share, traffic in shares(results):
        case = f"{setting.job} p={setting.workers} {setting.label}, {traffic:.3f} of DDP's bytes"
        found.append(Row(case, result["value"], JOBS[setting.job].unit, ddp, share))
    return found


def table(results: Sequence[Trained]) -> str:
    """Return one job's table: both ends first, then the methods by what their workers are worth."""
    first = results[0][0]
    lines = [
        f"### {JOBS[first.job].title}, p = {first.workers}, {first.steps} steps of each worker, seed {first.seed}",
        "",
        f"| setting | {JOBS[first.job].unit} | share of DDP's gain | bytes, DDP's = 1 |",
        "|---|---|---|---|",
    ]
    places = {"alone": 0, "ddp": 1}
    ordered = sorted(shares(results), key=lambda row: (places.get(row[0].method, 2), row[1]["value"]))
    for setting, result, share, traffic in ordered:
        lines.append(f"| {setting.label} | {result['value']:.4g} | {100 * share:.0f} % | {_fraction(traffic)} |")
    return "\n".join(lines)


def _fraction(traffic: float) -> str:
    if traffic == 0:
        return "0"
    return f"{traffic:.3g}" if traffic > 0.5 else f"1/{1 / traffic:.3g}"


def write(folder: Path, results: Iterable[Trained]) -> Path:
    """Write `worth.md` with the tables of all that was trained."""
    groups: dict[tuple[str, int, int, int], list[Trained]] = {}
    for setting, result in results:
        groups.setdefault((setting.job, setting.workers, setting.steps, setting.seed), []).append((setting, result))
    whole = [group for group in groups.values() if {s.method for s, _ in group} >= set(ENDS)]
    page = folder / "worth.md"
    page.write_text(TITLE + "\n\n".join(map(table, whole)) + "\n")
    return page
