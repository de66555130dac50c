"""One self-contained page: plots, tables and plotly.js in one file that asks the network for nothing.

Everything that comes from run folders is escaped; a content security policy forbids the page every request.
"""

from __future__ import annotations

import json
import math
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any

from easgd.extras import require_report
from easgd.report.data import PANELS, Line, ReportData, headline
from easgd.report.render_plotly import Plot, make_plots
from easgd.report.table import Table

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
WORDS = {"method", "run", "event", "state", "detail", "notes", "platform", "setting", "node"}
"""Columns of words, set flush left; the others are numbers."""


def make_page(model: ReportData, tables: dict[str, Table], scale: str = "auto") -> str:
    require_report("a report")
    from plotly.offline import get_plotlyjs

    plots = make_plots(model, scale)
    assets = files("easgd.report") / "assets"
    title = headline(model)
    measured = [] if model.launched else [_curves(plots), *_measured(model, tables, plots)]
    body = "\n".join(
        [_header(model, title), _legend(model.lines), *measured, *_sections(model, tables, plots), _footer(model)]
    )
    data = json.dumps(plots, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{(assets / 'page.css').read_text('utf-8')}</style>\n</head>\n"
        f'<body>\n<div class="page">\n{body}\n</div>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>{get_plotlyjs()}</script>\n<script>\n{(assets / 'page.js').read_text('utf-8')}</script>\n"
        "</body>\n</html>\n"
    )


def _header(model: ReportData, title: str) -> str:
    def several(name: str) -> str:
        return ", ".join(sorted({str(value) for e in model.entries if (value := e.setting(name)) is not None}))

    facts = [
        ("data", several("data")), ("network", several("network")), ("engine", several("engine")),
        ("time", model.clock), ("methods", str(len(model.lines))), ("runs", str(len(model.entries))),
    ]  # fmt: skip
    items = "".join(f"<li>{name} <b>{escape(value)}</b></li>" for name, value in facts if value)
    warnings = "".join(f"<li>{escape(note)}</li>" for note in model.notes)
    return (
        f'<header>\n<p class="eyebrow">easgd report</p>\n<h1>{escape(title)}</h1>\n<ul class="facts">{items}</ul>\n'
        "</header>\n" + (f'<ul class="warnings">{warnings}</ul>\n' if warnings else "")
    )


def _legend(lines: list[Line]) -> str:
    buttons = []
    for number, line in enumerate(lines):
        dash = f' stroke-dasharray="{",".join(map(str, line.look.dash))}"' if line.look.dash else ""
        sample = (
            f'<svg width="30" height="8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" '
            f'stroke="{line.look.colour}" stroke-width="2.5"{dash}/></svg>'
        )
        buttons.append(
            f'<button type="button" data-method="{number}" aria-pressed="true" '
            f'title="click hides or shows it in every plot, double click shows it alone">'
            f"{sample}{escape(line.label)}</button>"
        )
    return f'<nav class="legend" aria-label="methods">{"".join(buttons)}</nav>'


def _cards(plots: list[Plot], *names: str) -> str:
    cards = "".join(
        f'<div class="card"><h3>{escape(plot["title"])}</h3>{_keys(plot)}'
        f'<div class="plot" id="plot-{plot["id"]}"></div></div>'
        for plot in plots if plot["id"] in names
    )  # fmt: skip
    return f'<div class="grid">{cards}</div>' if cards else ""


def _keys(plot: Plot) -> str:
    """The colours of a plot whose parts are not methods."""
    keys = "".join(
        f'<span><span class="dot" style="background:{colour}"></span>{escape(name)}</span>'
        for name, colour in plot.get("keys", {}).items()
    )
    return f'<p class="keys">{keys}</p>' if keys else ""


def _curves(plots: list[Plot]) -> str:
    cards = _cards(plots, *PANELS)
    if not cards:
        return '<h2>Curves</h2>\n<p class="note">No run has been evaluated yet.</p>'
    kinds = [plot["type"] for plot in plots if plot["id"] in PANELS]
    buttons = "".join(
        f'<button type="button" data-scale="{kind}" aria-pressed="{"true" if set(kinds) == {kind} else "false"}">'
        f"{kind}</button>"
        for kind in ("linear", "log")
    )
    note = "Of the center variable. Drag to zoom, double click to return; a click in the legend hides a method."
    return (
        f'<h2>Curves</h2>\n<div class="bar"><p class="note">{note}</p><div class="scale" role="group" '
        f'aria-label="scale of the vertical axes">{buttons}</div></div>\n{cards}'
    )


def _section(model: ReportData, tables: dict[str, Table], plots: list[Plot], name: str, *shown: str) -> str:
    table, cards = tables.get(name), _cards(plots, *shown)
    if table is None:
        return f"<h2>{escape(shown[0])}</h2>\n{cards}" if cards else ""
    note = f'<p class="note">{escape(table.note)}</p>\n' if table.note else ""
    colours = {line.label: line.look.colour for line in model.lines}
    return f"<h2>{escape(table.title)}</h2>\n{note}{cards}{_table(table, colours)}"


def _measured(model: ReportData, tables: dict[str, Table], plots: list[Plot]) -> list[str]:
    """What follows from the test errors of the centers."""
    section = partial(_section, model, tables, plots)
    return [section("time-to-error", "bars"), section("best-errors"), section("learning-rates")]


def _sections(model: ReportData, tables: dict[str, Table], plots: list[Plot]) -> list[str]:
    """What follows from the records of the workers."""
    section = partial(_section, model, tables, plots)

    def folded(name: str) -> str:
        table = tables.get(name)
        return f"<details><summary>{escape(table.title)}</summary>{_table(table, {})}</details>" if table else ""

    return [
        section("time-breakdown", "loss", "split"), section("traffic", "distance", "staleness", "bytes"),
        section("events"), section("nodes"), section("runs"), folded("settings"), folded("environment"),
    ]  # fmt: skip


def _table(table: Table, colours: dict[str, str]) -> str:
    words = [name in WORDS for name, _ in table.columns]
    head = "".join(
        f"<th{' class=text' if text else ''}>{escape(shown)}</th>"
        for (_, shown), text in zip(table.columns, words, strict=True)
    )
    lows = _smallest(table)
    rows = []
    for row in table.rows:
        cells = []
        for place, ((value, shown), text) in enumerate(zip(row, words, strict=True)):
            kind = "long" if text and len(shown) > 40 else "text" if text else ""
            if shown in ("–", "never reached"):
                kind = "none"
            elif place in lows and value == lows[place]:
                kind = "best"
            dot = f'<span class="dot" style="background:{colours[shown]}"></span>' if shown in colours else ""
            cells.append(f"<td{f' class={kind}' if kind else ''}>{dot}{escape(shown)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table id="{table.name}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
    )


def _smallest(table: Table) -> dict[int, Any]:
    """Return the smallest value of the columns where small is good, to be set in bold."""
    result = {}
    for place, (name, _) in enumerate(table.columns):
        if name.startswith("seconds_to_") or name in ("best_error", "lowest_error", "final_error"):
            values = [v for row in table.rows if isinstance(v := row[place][0], float) and math.isfinite(v)]
            if len(values) > 1:
                result[place] = min(values)
    return result


def _footer(model: ReportData) -> str:
    rule = (
        "every learning rate is drawn" if model.every
        else "of every method the learning rate with the smallest test error, mean over seeds"
    )  # fmt: skip
    files_ = "curves, time-to-error (PNG, PDF) and every table (CSV) lie beside this page"
    return f"<footer>Selection: {rule}. Figures: {files_}.</footer>"
