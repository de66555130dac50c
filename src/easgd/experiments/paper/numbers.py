"""Numbers on a page, and the formulas that they come from, as in `20.3<!--= best("bytes/bytes-p2") -->`.

The formula stands behind its number in a comment that no reader sees. `numbers` computes each from the measurements
that are committed in docs/reproduction; `easgd paper check` names those that are not what they say, and `rewritten`
puts the right ones in.
"""

from __future__ import annotations

import ast
import csv
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from easgd.errors import SettingError, unknown
from easgd.files import read_json_lines
from easgd.records import breakdown, read_records

PAGES = [
    Path("docs/reproduction/README.md"), Path("docs/reproduction/search.md"), Path("docs/settings.md"),
    Path("docs/for-me.md"), Path("README.md"),
]  # fmt: skip
SCALE = "laptop"
_RECORDS = ("", "reproduction", "docs/reproduction")
"""Where the measurements are, from the folder of a page."""
_NUMBER = re.compile(r"(?<![\d.])(?P<text>(?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?)<!--= (?P<formula>.*?) -->")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A number on a page. `right` has as many decimals as `text`."""

    line: int
    text: str
    formula: str
    value: float

    @property
    def right(self) -> str:
        _, _, decimals = self.text.partition(".")
        plain = f"{self.value:.{len(decimals)}f}"
        # The page groups thousands by a space, from five digits on, as the paper's field does.
        return f"{int(plain):,}".replace(",", " ") if not decimals and self.value >= 10_000 else plain


class Measured:
    """What a run has measured: rows of time, steps, bytes, losses and errors of its center."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = list(read_json_lines(folder / "evaluations.jsonl"))

    @cached_property
    def workers(self) -> list[dict[str, float]]:
        """Means over the workers between two evaluations."""
        with open(self.folder / "workers.csv", newline="") as file:
            return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


class Formulas:
    """The functions that a formula may call. A run is "RECIPE/RUN", below a folder; errors are in per cent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, Measured] = {}

    def run(self, name: str) -> Measured:
        if name not in self._known:
            recipe, _, run = name.partition("/")
            places = [self.folder / SCALE / recipe / "runs" / run, self.folder / SCALE / recipe / run]
            found = next((place for place in places if (place / "evaluations.jsonl").exists()), None)
            if found is None:
                raise SettingError(f"run {name!r}: there are no measurements in {places[0]}")
            self._known[name] = Measured(found)
        return self._known[name]

    def time_to(self, run: str, percent: float) -> float:
        """Virtual seconds until the first measurement at or below an error."""
        times = [row["time"] for row in self.run(run).rows if 100 * row["test_error"] <= percent]
        if not times:
            raise SettingError(f"run {run!r} was never at {percent:g} %")
        return float(times[0])

    def settled(self, run: str, percent: float, every: float = 0.0) -> float:
        """Virtual seconds until the first of three measurements in a row at or below an error (see `settled`)."""
        rows = self.run(run).rows
        time = settled([row["time"] for row in rows], [100 * row["test_error"] for row in rows], percent, every)
        if time is None:
            raise SettingError(f"run {run!r} was never at {percent:g} % three times in a row")
        return time

    def sooner(self, run: str, other: str, percent: float) -> float:
        """How many times sooner a run has an error than another one."""
        return self.time_to(other, percent) / self.time_to(run, percent)

    def error(self, run: str, seconds: float) -> float:
        """The test error after so many virtual seconds: of the nearest measurement."""
        return 100.0 * float(self._at(self.run(run).rows, seconds)["test_error"])

    def loss(self, run: str, seconds: float) -> float:
        """The training loss of the center after so many virtual seconds."""
        return float(self._at(self.run(run).rows, seconds)["train_loss"])

    def worker_loss(self, run: str, seconds: float) -> float:
        """The mean training loss of the workers, before that measurement."""
        return float(self._at(self.run(run).workers, seconds)["loss"])

    def distance(self, run: str, seconds: float) -> float:
        """The mean distance of the workers to the center, before that measurement."""
        return float(self._at(self.run(run).workers, seconds)["distance"])

    def best(self, run: str) -> float:
        """The smallest test error."""
        return 100.0 * min(float(row["test_error"]) for row in self.run(run).rows)

    def last(self, run: str) -> float:
        """The last test error."""
        return 100.0 * float(self.run(run).rows[-1]["test_error"])

    def seconds(self, run: str) -> float:
        """Virtual seconds of the whole run."""
        return float(self.run(run).rows[-1]["time"])

    def gradients(self, run: str) -> float:
        """Gradients of all workers."""
        return float(self.run(run).rows[-1]["steps"])

    def megabytes(self, run: str) -> float:
        """Bytes that all workers sent and received."""
        return float(self.run(run).rows[-1]["bytes"]) / 1e6

    def communication(self, run: str) -> float:
        """Per cent of its workers' time that went into exchanges, of a run whose records are kept."""
        split = breakdown(read_records(self.run(run).folder))
        return 100.0 * split.communication / (split.compute + split.data + split.communication)

    @staticmethod
    def _at(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
        row = min(rows, key=lambda row: abs(row["time"] - seconds))
        if abs(row["time"] - seconds) > 1.0:
            raise SettingError(f"nothing was measured at {seconds:g} s; the nearest is {row['time']:g}")
        return row

    def value(self, formula: str) -> float:
        """Compute a formula: calls of these functions, numbers, texts, and + - * /."""
        try:
            return float(self._value(ast.parse(formula, mode="eval").body))
        except (SyntaxError, TypeError, ZeroDivisionError) as error:
            raise SettingError(f"formula {formula!r}: {error}") from error

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id not in FUNCTIONS:
                raise unknown("function", node.func.id, FUNCTIONS)
            return getattr(self, node.func.id)(*map(self._value, node.args))
        raise SyntaxError("only calls, numbers, texts and + - * / are allowed")


def settled(times: Sequence[float], errors: Sequence[float], level: float, every: float = 0.0) -> float | None:
    """Return the time of the first of three errors in a row at or below a level: a lucky one does not count.

    With `every`, of the measurements those count that are nearest to its multiples: a run that is measured more often
    has more chances to be seen at a level.
    """
    kept = list(range(len(times)))
    if every > 0:
        points = range(round(times[-1] / every) + 1)
        kept = [min(range(len(times)), key=lambda k: abs(times[k] - every * point)) for point in points]
    below = [errors[k] <= level for k in kept]
    place = next((k for k in range(len(below) - 2) if all(below[k : k + 3])), None)
    return None if place is None else times[kept[place]]


FUNCTIONS = (
    "best", "communication", "distance", "error", "gradients", "last", "loss", "megabytes", "seconds", "settled",
    "sooner", "time_to", "worker_loss",
)  # fmt: skip


def numbers(page: Path) -> list[Number]:
    """Return every number of a page that has a formula, with what the formula gives."""
    formulas, found = Formulas(_records(page)), []
    for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for match in _NUMBER.finditer(text):
            try:
                value = formulas.value(match["formula"])
            except SettingError as error:
                raise SettingError(f"{page}, line {line}: {error}") from error
            found.append(Number(line, match["text"], match["formula"], value))
    return found


def _records(page: Path) -> Path:
    """Return the folder with the measurements that a page may cite."""
    places = [page.parent / place for place in _RECORDS]
    return next((place for place in places if (place / SCALE).is_dir()), page.parent)


def rewritten(page: Path) -> str:
    """Return the page with every number as its formula gives it."""
    right = iter(numbers(page))
    return _NUMBER.sub(
        lambda match: f"{next(right).right}<!--= {match['formula']} -->", page.read_text(encoding="utf-8")
    )
