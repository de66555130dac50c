"""A report on disk: the page, the figures for print, the numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from easgd.errors import refuse
from easgd.report.data import ReportData, build
from easgd.report.figures import curves, times_to_levels
from easgd.report.levels import time_to
from easgd.report.page import make_page
from easgd.report.render_matplotlib import write_figure
from easgd.report.scales import check_scale
from easgd.report.table import write_rows
from easgd.report.tables import make_all

StrPath = str | os.PathLike[str]


def write_report(
    paths: StrPath | Sequence[StrPath],
    out: StrPath | None = None,
    *,
    levels: Sequence[float] | None = None,
    baseline: str | None = None,
    every: bool = False,
    scale: str = "auto",
) -> Path:
    """Report on runs; return the path of the page.

    Args:
        paths: folders of runs or of comparisons; every run below them is read.
        out: folder to write into; by default `report` in the first path.
        levels: test errors for the time-to-error table, such as (0.25, 0.21); chosen from the runs if not given.
        baseline: the method that speed-ups are against; by default the fastest with one worker, at each level.
        every: draw every learning rate, not only the best one of each method.
        scale: of the curves: "linear", "log", or "auto".

    Example:
        >>> import easgd
        >>> run = easgd.train(method="easgd", engine="simulate", network="digits-mlp", steps=20)
        >>> easgd.write_report([run.path]).name
        'index.html'
    """
    folders = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    check_scale(scale)
    model = build(folders, levels, baseline, every)
    return write_model(model, Path(out) if out is not None else folders[0] / "report", scale)


def write_model(model: ReportData, out: Path, scale: str = "auto") -> Path:
    tables = make_all(model)
    page = make_page(model, tables, scale)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.html").write_text(page, encoding="utf-8")
        for table in tables.values():
            table.write(out)
        write_curves(model, out)
        if any(len(line.mean["time"]) for line in model.lines):
            write_figure(curves(model, scale), out / "curves")
        if any(math.isfinite(time_to(choice, level)) for choice in model.choices for level in model.levels):
            write_figure(times_to_levels(model), out / "time-to-error")
    except OSError as error:
        raise refuse("out", out, f"cannot be written ({error.strerror})", "choose another folder with --out") from error
    return out / "index.html"


def write_curves(model: ReportData, folder: Path, name: str = "curves") -> Path:
    """Write every point of every run as CSV."""
    rows: list[list[object]] = []
    for entry in model.entries:
        lr, seed = (entry.settings.lr, entry.settings.seed) if entry.settings else ("", "")
        points = zip(*entry.curves.values(), strict=True)
        rows += [[entry.name, entry.label, lr, seed, *map(float, values)] for values in points]
    header = ["run", "method", "lr", "seed", *next(iter(model.entries)).curves]
    return write_rows(folder / f"{name}.csv", header, rows)
