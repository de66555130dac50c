"""Write measured figures into the last column of the table in docs/faults.md.

python tools/fault_figures.py rows.json …    takes rows of `easgd bench faults --json` and `make soak` over into
                                             docs/faults.json, and writes the column from it
python tools/fault_figures.py                writes the column again

A row belongs to the first line of the table that has the number and the engine at the beginning of its case.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TABLE, FIGURES = DOCS / "faults.md", DOCS / "faults.json"
CASE = re.compile(r"(\d+) (\w+): (.*)")


def merged(known: list[dict], new: list[dict]) -> list[dict]:
    """Return all rows that have a number, the new ones in the place of older ones with the same case."""
    rows = {row["case"]: row for row in [*known, *new] if CASE.match(row["case"])}
    return sorted(rows.values(), key=lambda row: (int(CASE.match(row["case"])[1]), row["case"]))


def figures(rows: list[dict]) -> dict[tuple[str, str], str]:
    """Return the text of each (number, engine)."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        number, engine, what = CASE.match(row["case"]).groups()
        found.setdefault((number, engine), []).append(f"{what}: {text(row['value'])} {row['unit']}".rstrip())
    return {key: "; ".join(texts) for key, texts in found.items()}


def text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def filled(table: str, found: dict[tuple[str, str], str]) -> str:
    """Return the page with the last column of its first table filled in."""
    left, lines, number = dict(found), [], ""
    for line in table.splitlines():
        cells = line.split(" | ")
        if line.startswith("| ") and len(cells) == 6 and cells[0] != "| #":
            number = cells[0].removeprefix("|").strip() or number
            key = next((k for k in left if k[0] == number and k[1] in cells[2].split(", ")), None)
            cells[-1] = f"{left.pop(key) if key else '–'} |"
        lines.append(" | ".join(cells))
    assert not left, f"no line of the table is for {sorted(left)}"
    return "\n".join(lines) + "\n"


def main(paths: list[str]) -> None:
    rows = json.loads(FIGURES.read_text()) if FIGURES.exists() else []
    for path in paths:
        rows = merged(rows, json.loads(Path(path).read_text()))
    FIGURES.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    TABLE.write_text(filled(TABLE.read_text(), figures(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
