"""`easgd bench NAME`: run one benchmark and print its rows."""

from __future__ import annotations

import importlib
import json

from easgd.bench import BENCHES, Row
from easgd.errors import unknown

USAGE = f"""usage: easgd bench NAME [--json]

Measure this machine. Every figure is a ratio to a reference taken in the same run.

names:  {", ".join(BENCHES)}
  --json  print a list of {{"case", "value", "unit", "reference", "ratio"}} for programs
example: easgd bench simulator
"""


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


def main(argv: list[str]) -> int:
    """Parse the name and `--json`, run, print."""
    names = [arg for arg in argv if not arg.startswith("-")]
    flags = {arg for arg in argv if arg.startswith("-")}
    if flags & {"-h", "--help"} or len(names) != 1 or flags - {"--json"}:
        print(USAGE, end="")
        return 0 if flags & {"-h", "--help"} else 2
    if names[0] not in BENCHES:
        raise unknown("benchmark", names[0], BENCHES)
    rows = importlib.import_module(BENCHES[names[0]]).rows()
    if "--json" in flags:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        table(rows, f"easgd bench {names[0]}")
    return 0
