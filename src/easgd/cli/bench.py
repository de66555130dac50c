"""`easgd bench NAME`: run one benchmark and print its rows."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from easgd.bench import BENCHES, Row
from easgd.cli import bench_link
from easgd.cli.parsing import Command
from easgd.errors import SettingError, unknown
from easgd.settings import Count, Positive, Seed, option


@dataclass(frozen=True)
class BenchOptions:
    """The options of `easgd bench`."""

    names: tuple[str, ...] = option("the benchmark", (), positional=True, metavar="NAME")
    json: bool = option('print a list of {"case", "value", "unit", "reference", "ratio"} for programs', False)
    engine: Literal["local", "ray"] | None = option("of the benchmarks `overhead` (local) and `faults` (both)")
    fragments: Count | None = option("of the benchmark `wire`: parts of the vector that are exchanged in turn (8)")
    parameters: tuple[Count, ...] | None = option(
        "of the benchmark `scale`: sizes of the center (10000 1000000 25000000)", nargs="+", metavar="N"
    )
    clients: tuple[Count, ...] | None = option(
        "of the benchmark `scale`: numbers of clients (1 2 8)", nargs="+", metavar="N"
    )
    job: Literal["gpt", "cifar10"] | None = option("of the benchmark `worth`: what is trained (gpt)")
    workers: Count | None = option("of the benchmarks `worth` and `chaos`: p (2)")
    steps: Count | None = option("of the benchmark `worth`: steps of each worker (400)")
    seconds: Positive | None = option("of the benchmark `chaos`: how long each run trains (40)")
    rate: Positive | None = option("of the benchmark `chaos`: kills a minute, over all workers (6)")
    seed: Seed | None = option("of the benchmark `chaos`: which workers are killed when (0)")
    out: Path | None = option(
        "of the benchmark `worth`: folder of its records; what is there is not trained again", metavar="DIR"
    )


COMMAND = Command(
    "bench", BenchOptions, "Measure this machine. Every figure is a ratio to a reference taken in the same run.",
    ["bench simulator", "bench worth --workers 4"],
    f"names: {', '.join(BENCHES)}; `easgd bench link --help` explains its own options",
)  # fmt: skip


OWNERS = {
    "engine": ("overhead", "faults"), "fragments": ("wire",), "job": ("worth",), "steps": ("worth",), "out": ("worth",),
    "workers": ("worth", "chaos"), "seconds": ("chaos",), "rate": ("chaos",), "seed": ("chaos",),
    "parameters": ("scale",), "clients": ("scale",),
}  # fmt: skip
"""Which benchmarks take an option."""


def table(rows: list[Row], title: str) -> None:
    """Print rows for people."""
    from rich.console import Console
    from rich.table import Table

    out = Table(title=title)
    for name in ("case", "value", "unit", "reference", "ratio"):
        out.add_column(name, justify="left" if name in ("case", "unit") else "right")
    for row in rows:
        out.add_row(row.case, f"{row.value:.4g}", row.unit, f"{row.reference:.4g}", f"{row.ratio:.3f}")
    Console().print(out)


def show(rows: list[Row], name: str, for_programs: bool) -> None:
    """Print rows for people or for programs."""
    if for_programs:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        table(rows, f"easgd bench {name}")


def main(argv: list[str]) -> int:
    """Parse the name and the options, run, print."""
    if argv[:1] == ["link"]:
        rows = bench_link.main(argv[1:])
        if rows is not None:
            show(rows, "link", "--json" in argv)
        return 0
    options = COMMAND.parse(argv)
    if len(options.names) != 1:
        raise SettingError(f"{len(options.names)} benchmarks given: name one of {', '.join(BENCHES)}")
    name, settings = options.names[0], dict[str, Any]()
    if name not in BENCHES:
        raise unknown("benchmark", name, BENCHES)
    for what, owners in OWNERS.items():
        if (value := getattr(options, what)) is not None:
            if name not in owners:
                named = " and ".join(f"`easgd bench {owner}`" for owner in owners)
                raise SettingError(f"--{what} = {value}: only {named} takes it; leave it out")
            settings[what] = value
    show(importlib.import_module(BENCHES[name]).rows(**settings), name, options.json)
    return 0
