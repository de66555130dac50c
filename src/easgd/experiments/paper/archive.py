"""What is written beside a figure, so that its folder can be committed: where it came from, and its runs."""

from __future__ import annotations

import gzip
import math
import shutil
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from easgd.errors import SettingError
from easgd.experiments.paper.particulars import particulars
from easgd.experiments.paper.recipes import Recipe
from easgd.experiments.paper.scales import Scale
from easgd.files import read_json, write_json
from easgd.records import Step
from easgd.report.table import Table, write_rows
from easgd.training.folder import git_revision
from easgd.training.run import Run

KEPT = ("config.json", "status.json", "evaluations.jsonl")
WORKERS = ("time", "loss", "distance", "staleness")
SMALL = 100_000
"""Packed records above this many bytes stay where they are."""


def keep_runs(runs: Sequence[Run], out: Path) -> Path:
    """Copy settings, state and evaluations of every run; its records too, packed, where they are small.

    Runs that are there already, because a figure is drawn again, stay as they are.
    """
    folder = out / "runs"
    there = [folder.resolve() in run.path.resolve().parents for run in runs]
    if all(there):
        return folder
    assert not any(there), "the copy would replace some of the runs themselves"
    if folder.exists():
        shutil.rmtree(folder)
    for run in runs:
        target = folder / run.path.name
        target.mkdir(parents=True)
        # A run that comes from an archive itself has no records to make these two from.
        archived = [path.name for path in run.path.glob("records-*.jsonl.gz")] + ["workers.csv"]
        for name in (*KEPT, *archived):
            if (run.path / name).exists():
                shutil.copyfile(run.path / name, target / name)
        for records in sorted(run.path.glob("records-*.jsonl")):
            # No name and no date in it: the same run gives the same file.
            packed = gzip.compress(records.read_bytes(), mtime=0) if records.stat().st_size < 20 * SMALL else b""
            if 0 < len(packed) <= SMALL:
                (target / f"{records.name}.gz").write_bytes(packed)
        if rows := workers_of(run):
            write_rows(target / "workers.csv", WORKERS, rows)
    return folder


def workers_of(run: Run) -> list[list[float]]:
    """Means between two evaluations: the workers' loss, distance to x̃ and staleness."""
    ends = [float(row["time"]) for row in run.evaluations]
    sums = {end: [[0.0, 0] for _ in WORKERS[1:]] for end in ends}
    for record in run.records():
        if isinstance(record, Step) and (place := bisect_left(ends, record.time)) < len(ends):
            for part, value in zip(sums[ends[place]], (record.loss, record.distance, record.staleness), strict=True):
                if value is not None:
                    part[0], part[1] = part[0] + value, part[1] + 1
    means = [[end, *(total / n if n else math.nan for total, n in parts)] for end, parts in sums.items()]
    return [row for row in means if any(map(math.isfinite, row[1:]))]


def about(
    recipe: Recipe, scale: Scale, runs: Sequence[Run], paths: Sequence[Path], folder: Path
) -> dict[str, Any]:  # fmt: skip
    """Return where a figure came from. Of runs that were archived before, the folder's own page knows the revision."""
    earlier = (read_json(folder / "about.json") or {}).get("runs", {})
    revisions = {run.path.name: _revision(run) or earlier.get(run.path.name, {}).get("revision") for run in runs}
    return {
        "recipe": recipe.name,
        "place": recipe.place,
        "title": recipe.title,
        "scale": scale.name,
        "command": f"easgd paper {recipe.name} --scale {scale.name}{' --photos DIR' * bool(scale.photos)}",
        "drawn_by_revision": git_revision(),
        "data": sorted({run.config.data for run in runs}),
        "seeds": sorted({run.config.seed for run in runs}),
        "init_seeds": sorted({run.config.init_seed for run in runs}),
        "runs": {
            run.path.name: {"state": run.status.get("state"), "revision": revisions[run.path.name]} for run in runs
        },
        "real_hours": round(sum(float(run.status.get("seconds") or 0.0) for run in runs) / 3600, 4),
        "paper_says": recipe.paper_says,
        "files": [path.name for path in paths],
    }


def _revision(run: Run) -> str | None:
    return (read_json(run.path / "environment.json") or {}).get("git")


def runs_table(runs: Sequence[Run]) -> Table:
    """The settings of every run, and how far it came."""
    columns = ("run", "method", "p", "τ", "η", "more", "gradients", "ended because")
    rows = []
    for run in runs:
        config, last = run.config, run.evaluations[-1]
        cells = (
            run.path.name, config.method_class.name, config.workers, config.period, f"{config.lr:g}",
            ", ".join(particulars(config)) or "–", last["steps"], run.status.get("reason"),
        )  # fmt: skip
        rows.append([(value, str(value)) for value in cells])
    return Table("runs", "Runs", [(name, name) for name in columns], rows)


def write_page(facts: dict[str, Any], tables: Sequence[Table], out: Path, notes: Sequence[str]) -> list[Path]:
    lines = [f"# {facts['title']}", "", f"{facts['place']}. `{facts['command']}`", ""]
    lines += [*(f"![{facts['title']}]({file})" for file in facts["files"] if file.endswith(".png")), ""]
    if facts["runs"]:
        seeds = ", ".join(map(str, facts["seeds"]))
        lines += [f"- Scale *{facts['scale']}*. Data: {', '.join(facts['data'])}. Seeds: {seeds}."]
        lines += [f"- Real time of the runs together: {facts['real_hours']:.3g} h."]
        revisions = sorted({run["revision"] or "unknown" for run in facts["runs"].values()})
        lines += [f"- Revision of the runs: {', '.join(revisions)}."]
    lines += [f"- Drawn by revision {facts['drawn_by_revision']}."]
    if facts["paper_says"]:
        lines += [f"- The paper says: {facts['paper_says']}."]
    lines += [f"- {note}" for note in notes]
    for table in tables:
        lines += ["", f"## {table.title}", "", *markdown(table)]
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(out / "about.json", facts)
    return [out / "README.md", out / "about.json"]


def markdown(table: Table) -> list[str]:
    head = [f"| {' | '.join(name for _, name in table.columns)} |", f"|{'---|' * len(table.columns)}"]
    rows = [f"| {' | '.join(text for _, text in row)} |" for row in table.rows]
    return [*head, *rows, *(["", table.note] if table.note else [])]


def check_figures(paths: Sequence[Path]) -> None:
    """Refuse figures that are missing or show nothing."""
    from matplotlib.image import imread

    for path in paths:
        if not path.exists() or not path.stat().st_size:
            raise SettingError(f"{path}: it was not written; remove the folder and run the recipe again")
        if path.suffix == ".png":
            picture = imread(path)[..., :3]
            # A page with axes and nothing in them is a few per cent grey; lines and areas have colours.
            colours = picture.max(axis=-1) - picture.min(axis=-1)
            if float((colours > 0.1).mean()) < 1e-4:
                raise SettingError(f"{path}: the figure is empty; look at the runs' logs")
        elif path.suffix == ".csv" and len(path.read_text(encoding="utf-8").splitlines()) < 2:
            raise SettingError(f"{path}: it has no rows; look at the runs' logs")
