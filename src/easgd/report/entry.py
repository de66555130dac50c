"""The runs of a report: what their folders hold, and a note on everything that is missing or broken."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from easgd.errors import SettingError, refuse
from easgd.files import read_json, read_json_lines
from easgd.records import Attached, read_records
from easgd.report.scan import Scan
from easgd.training.config import FIELDS, Config
from easgd.training.folder import RunFolder
from easgd.training.run import COLUMNS, Curve, curves_of
from easgd.training.select import Choice, choose

MARKS = ("config.json", "evaluations.jsonl", "records-launcher.jsonl")
"""A folder that holds one of these is a run, or what is left of one."""
COMPARISON = "compare.json"


class ReportRun:
    """A run folder that may be unfinished or damaged; `notes` says what could not be read."""

    def __init__(self, path: Path, name: str) -> None:
        self.folder, self.name = RunFolder(path), name
        self.notes: list[str] = []
        self.settings: Config | None = self._settings()
        self.environment = self._read("environment.json")
        self.status = self._read("status.json")
        self.curves: dict[str, Curve] = self._curves()
        self.attached: Attached | None = self.scan.attached if self.settings is None else None
        """What a launched script was attached with; `easgd train` writes its settings instead."""
        if self.attached is not None:
            self.notes = ["launched: what its script measures is not known here, only its steps and exchanges"]

    @property
    def config(self) -> Config:
        assert self.settings is not None, "only runs with settings are asked for them"
        return self.settings

    @property
    def label(self) -> str:
        """Method, p and τ; of a launched run the folder's name besides, where nothing is known that name alone."""
        if self.settings is not None:
            return self.settings.label
        return f"{self.attached.label} ({self.name})" if self.attached is not None else self.name

    def setting(self, name: str) -> Any:
        """One setting by its name; None where it is not known, as most are of a launched run."""
        return getattr(self.settings or self.attached, name, None)

    @property
    def state(self) -> str:
        """ "finished", "interrupted", "failed" or "running"; a killed run still says "running"."""
        return str(self.status.get("state", "unknown"))

    @property
    def best(self) -> float:
        """The smallest test error; infinite if none was measured."""
        return float(np.nanmin(self.curves["test_error"], initial=math.inf))

    @property
    def complete(self) -> bool:
        return self.state == "finished"

    @property
    def virtual(self) -> bool | None:
        """Whether its time is virtual; None where the settings are lost."""
        engine = self.setting("engine")
        return None if engine is None else engine == "simulate"

    @cached_property
    def scan(self) -> Scan:
        found = Scan(read_records(self.folder.path))
        if not found.steps:
            self.notes.append("no records of steps: no time breakdown, distance or staleness")
        return found

    def _read(self, name: str) -> dict[str, Any]:
        data = read_json(self.folder.path / name)
        if data is None:
            self.notes.append(f"{name} is {'broken' if (self.folder.path / name).exists() else 'missing'}")
        return data or {}

    def _settings(self) -> Config | None:
        path = self.folder.path / "config.json"
        try:
            return Config.load(path)
        except SettingError as error:
            data = read_json(path)
            self.notes.append("config.json is missing" if not path.exists() else f"config.json: {error}")
        # A folder of another version may have settings that this one does not know: the others still hold.
        try:
            known = {k: v for k, v in (data or {}).items() if k in FIELDS}
            return Config.from_dict(known) if "method" in known else None
        except SettingError:
            return None

    def _curves(self) -> dict[str, Curve]:
        path = self.folder.evaluations_path
        if not path.exists():
            self.notes.append("evaluations.jsonl is missing: no curves")
            return curves_of([])
        rows = [row for row in read_json_lines(path) if _is_evaluation(row)]
        with open(path, "rb") as file:
            lines = sum(1 for line in file if line.strip())
        if lines > len(rows):
            self.notes.append(f"evaluations.jsonl: {lines - len(rows)} of {lines} lines cannot be read")
        if not lines:
            self.notes.append("nothing has been evaluated yet")
        return curves_of(sorted(rows, key=lambda row: float(row["time"])))


def _is_evaluation(row: dict[str, Any]) -> bool:
    values = [row.get(name) for name in COLUMNS]
    return row.get("time") is not None and all(v is None or isinstance(v, int | float) for v in values)


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders at and below the paths, each once, in a stable order."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise refuse("run", path, "no such folder", "give folders of runs or comparisons")
        below = planned(path) or sorted({mark.parent for name in MARKS for mark in path.rglob(name)})
        below = [folder for folder in below if not folder.name.startswith("earlier-")]  # records that were moved aside
        if not below:
            remedy = "give the folder of `easgd train`, `launch` or `compare --out`"
            raise refuse("run", path, "it holds no runs", remedy)
        found |= dict.fromkeys(below)
    return list(found)


def planned(path: Path) -> list[Path]:
    """Return the runs of a comparison that have begun: its folder may hold others, of an earlier plan."""
    names = (read_json(path / COMPARISON) or {}).get("runs")
    folders = [path / str(name) for name in names] if isinstance(names, list) else []
    return [folder for folder in folders if any((folder / mark).exists() for mark in MARKS)]


def load(paths: Sequence[Path]) -> list[ReportRun]:
    """Read every run at and below the paths; runs are named by what tells their folders apart."""
    folders = list(dict.fromkeys(folder.resolve() for folder in find(paths)))
    common = os.path.commonpath([folder.parent for folder in folders])
    return [ReportRun(folder, str(folder.relative_to(common))) for folder in folders]


def methods(entries: Sequence[ReportRun], every: bool = False) -> list[Choice[ReportRun]]:
    """Select the learning rate of each method; a run without settings stands for itself."""
    known = sorted(choose([entry for entry in entries if entry.settings is not None], every), key=_rank)
    lost = [Choice(e.label, e.setting("lr"), [e], e.best, {}, None) for e in entries if e.settings is None]
    return [*known, *lost]


def _rank(choice: Choice[ReportRun]) -> tuple[Any, ...]:
    """Sequential methods first, then the paper's order, then by p, τ and η: the same runs, the same colours."""
    config = choice.runs[0].config
    method = config.method_class
    return not choice.sequential, method.order, method.key, config.workers or 0, config.steps_between, config.lr or 0.0
