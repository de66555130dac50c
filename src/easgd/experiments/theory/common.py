"""What the figures of the analysis share: style, files, progress bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from easgd.errors import refuse
from easgd.report.render_matplotlib import save
from easgd.report.table import write_rows
from easgd.theory.linear import Progress

# cividis and viridis rise evenly in lightness, so they survive a grey printer and colour-blind eyes.
MAP = "viridis"
UNSTABLE = "0.82"  # flat grey, outside both scales
HATCH = "////"
# Four lines that differ in lightness, hue *and* dash (Okabe and Ito's palette).
LINES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#000000", ":"))
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "hatch.linewidth": 0.4,
    "savefig.dpi": 110,
    "pdf.fonttype": 42,
}


@contextmanager
def figure(width: float, height: float, **style: Any) -> Iterator[Figure]:
    """Give an empty figure of that size in inches; what the block draws has our style."""
    settings: dict[Any, Any] = {**STYLE, **style}
    with rc_context(settings):
        result = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(result)
        yield result


def write(fig: Figure, header: Sequence[str], rows: Iterable[Sequence[object]], out: Path, name: str) -> list[Path]:
    """Write `name`.png, .pdf and .csv into the folder `out`; return their paths."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse("out", out, f"cannot be used as a folder ({error.strerror})", "give another folder") from None
    paths = [out / f"{name}.{kind}" for kind in ("png", "pdf", "csv")]
    with rc_context(STYLE):
        save(fig, out / name)
    write_rows(paths[2], header, rows)
    return paths


@contextmanager
def progress(label: str, total: int) -> Iterator[Progress]:
    """Show a bar on stderr while the block runs; the yielded function takes the number of items just done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)
