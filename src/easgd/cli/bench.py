"""`easgd bench NAME`: run one benchmark and print its rows."""

from __future__ import annotations

import importlib
import json

from easgd.bench import BENCHES, Row
from easgd.errors import SettingError, refuse, unknown

USAGE = f"""usage: easgd bench NAME [--json] [--engine ENGINE]

Measure this machine. Every figure is a ratio to a reference taken in the same run.

names:  {", ".join(BENCHES)}
  --json           print a list of {{"case", "value", "unit", "reference", "ratio"}} for programs
  --engine ENGINE  for `overhead`: local (processes of this machine) or ray (local)
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
    """Parse the name and the options, run, print."""
    if not argv or {"-h", "--help"} & set(argv):
        print(USAGE, end="")
        return 0 if argv else 2
    argv, options = list(argv), {}
    if "--engine" in argv:
        at = argv.index("--engine")
        if at + 1 == len(argv):
            raise refuse("--engine", "nothing", "it takes a value", "write --engine ray")
        options["engine"] = argv[at + 1]
        del argv[at : at + 2]
    names = [arg for arg in argv if not arg.startswith("-")]
    flags = {arg for arg in argv if arg.startswith("-")}
    if strange := flags - {"--json"}:
        raise unknown("option", min(strange), ("--json", "--engine", "--help"))
    if len(names) != 1:
        raise SettingError(f"{len(names)} benchmarks given: name one of {', '.join(BENCHES)}")
    if names[0] not in BENCHES:
        raise unknown("benchmark", names[0], BENCHES)
    if options and names[0] != "overhead":
        raise SettingError(f"--engine = {options['engine']}: only `easgd bench overhead` takes it; leave it out")
    rows = importlib.import_module(BENCHES[names[0]]).rows(**options)
    if "--json" in flags:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        table(rows, f"easgd bench {names[0]}")
    return 0
