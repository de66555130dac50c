"""A table of the report. A cell has a value, which the CSV file gets, and a text, which people get."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Cell = tuple[Any, str]
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets take a cell that begins so for a formula."""


@dataclass
class Table:
    """Rows of cells under names; `name` is the CSV file's."""

    name: str
    title: str
    columns: list[tuple[str, str]]
    """(name in the file, name for people)"""
    rows: list[list[Cell]]
    note: str = ""
    file: tuple[list[str], list[list[Any]]] | None = None
    """names and rows of the CSV file, where it has another form than what people see"""

    def write(self, folder: Path) -> Path:
        names, rows = self.file or (
            [name for name, _ in self.columns], [[value for value, _ in row] for row in self.rows]
        )  # fmt: skip
        return write_rows(folder / f"{self.name}.csv", names, rows)


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a CSV file: numbers with nine digits, nothing for what is missing or not finite.

    Labels and notes come from run folders, so text that a spreadsheet would run as a formula is quoted.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_csv_cell, header))
        writer.writerows(map(_csv_cell, row) for row in rows)
    return path


def _csv_cell(value: Any) -> Any:
    if _missing(value):
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) and not _is_number(value) else value


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def cell(value: Any, form: str = "") -> Cell:
    """Make a cell; what is missing or not finite is shown as a dash."""
    if _missing(value):
        return value, "–"
    return value, format(value, form) if form else str(value)


def percent(value: float) -> Cell:
    return value, f"{100 * value:.2f} %" if math.isfinite(value) else "–"


def size(count: float | None) -> Cell:
    if count is None or not math.isfinite(count):
        return None, "–"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return int(count), f"{count / scale:.3g} {unit}"
    return int(count), f"{count:.0f} B"
