"""`make demo`: the paper's methods side by side on the digits set, on the virtual clock of the paper's CIFAR cluster.

Gradients, data and errors are real; only time is modelled, so that sixteen virtual GPUs fit on a laptop. Every method
gets the same virtual seconds from the same start; what is measured is the test error of its center (of the average z
where it keeps one).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from easgd.data import load
from easgd.engines.simulate import CostModel, ModelGradient, Simulation
from easgd.flat import pack
from easgd.methods import EAMSGD, EASGD, MSGD, Downpour, MDownpour, Method, MVADownpour
from easgd.models import digits_conv
from easgd.records import Record, Step, breakdown

SECONDS = 40.0
GRID = 0.5
BATCH = 32
LEVELS = (0.10, 0.05, 0.03)
OUT = Path("demo")


@dataclass
class Entry:
    """One method of the comparison and what was seen of it."""

    method: Method
    workers: int
    lr: float
    times: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Name for table and figure."""
        return f"{self.method.name} p={self.workers} τ={self.method.period}"

    def reached(self, level: float) -> float | None:
        """First virtual second at which the test error is at most `level`."""
        return next((t for t, e in zip(self.times, self.errors, strict=True) if e <= level), None)


def entries() -> list[Entry]:
    """The runs. Learning rates are the best of a small grid for each method, as in the paper's protocol."""
    return [
        Entry(MSGD(momentum=0.9), 1, 0.05),
        Entry(Downpour(period=1), 4, 0.1),
        Entry(MVADownpour(period=1, rate=0.01), 4, 0.1),
        Entry(MDownpour(momentum=0.9), 4, 0.01),
        Entry(EASGD(period=10), 4, 0.2),
        Entry(EAMSGD(period=10, momentum=0.9), 4, 0.1),
    ]


class Digits:
    """The data set in memory: batches by (worker, step), and the test error of a vector of parameters."""

    def __init__(self) -> None:
        self.train, self.labels = self._read("train")
        self.test, self.test_labels = self._read("test")
        self.net = digits_conv(seed=0)
        self.vector, _ = pack(self.net)

    @staticmethod
    def _read(split: str) -> tuple[Tensor, Tensor]:
        file = load("digits", split)
        assert file.images is not None
        images = torch.from_numpy(file.images.astype(np.float32) / 255).permute(0, 3, 1, 2).contiguous()
        return images, torch.from_numpy(file.labels.astype(np.int64))

    def batch(self, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Draw the batch of this worker's step: a function of both alone, so that runs repeat."""
        rows = torch.from_numpy(np.random.default_rng([worker, step]).integers(0, len(self.train), BATCH))
        return self.train[rows], self.labels[rows]

    @torch.no_grad()
    def error(self, x: Tensor) -> float:
        """Share of test digits that the parameters x get wrong."""
        self.vector.copy_(x)
        wrong = self.net(self.test).argmax(1) != self.test_labels
        return float(wrong.float().mean())


def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def train(entry: Entry, digits: Digits, advance: object = None, seconds: float = SECONDS) -> None:
    """Run one entry to the end of its virtual time, measuring its center on a grid of virtual seconds."""
    gradient = ModelGradient(digits_conv(seed=0), loss, digits.batch)
    sim = Simulation(
        gradient, gradient.x0, entry.method, lr=entry.lr, workers=entry.workers, weight_decay=1e-4, schedule="async",
        cost=CostModel.preset("paper-cifar"), on_record=entry.records.append,
    )  # fmt: skip
    while sim.time < seconds:
        if sim.time >= len(entry.times) * GRID:
            entry.times.append(sim.time)
            entry.errors.append(digits.error(sim.center.measured))
            if callable(advance):
                advance(min(sim.time / seconds, 1.0), entry.errors[-1])
        sim.run(1)


def show(done: list[Entry]) -> None:
    """Print the closing table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"digits: test error of the center, and virtual seconds (of {SECONDS:g}) to reach a level")
    table.add_column("method", no_wrap=True)
    for name in ("p", "τ", "η", "best", *(f"to {level:.0%}" for level in LEVELS), "comm.", "GB"):
        table.add_column(name, justify="right", no_wrap=True)
    for e in done:
        times = [e.reached(level) for level in LEVELS]
        spent = breakdown(e.records)
        share = spent.communication / (spent.compute + spent.data + spent.communication)
        gigabytes = sum(r.bytes for r in e.records if isinstance(r, Step)) / 1e9
        table.add_row(
            e.method.name, str(e.workers), str(e.method.period), f"{e.lr:g}", f"{min(e.errors):.1%}",
            *("never" if t is None else f"{t:.1f}" for t in times), f"{share:.0%}", f"{gigabytes:.1f}",
        )  # fmt: skip
    Console().print(table)


def draw(done: list[Entry], path: Path) -> None:
    """Draw test error against virtual time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.2), constrained_layout=True)
    # Okabe and Ito's palette, with line styles for readers without colours; the last method is the one to see.
    colors = ["#000000", "#56b4e9", "#0072b2", "#cc79a7", "#009e73", "#d55e00"]
    styles = ["--", "-.", ":", (0, (3, 1, 1, 1)), (0, (5, 1)), "-"]
    for i, entry in enumerate(done):
        percent = [100 * e for e in entry.errors]
        width = 2.4 if i == len(done) - 1 else 1.3
        axes.plot(
            entry.times, percent, label=entry.label, linestyle=styles[i % 6], color=colors[i % 6], linewidth=width
        )
    axes.set(xlabel="virtual time [s]", ylabel="test error of the center [%]", yscale="log", xlim=(0, SECONDS))
    axes.set_title("Digits: four workers against one, on the clock of the paper's cluster")
    ticks = [2, 5, 10, 20, 50, 90]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def main() -> int:
    """Run the comparison, print the table, write the figure."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    torch.set_num_threads(1)
    digits = Digits()
    runs = entries()
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        TextColumn("{task.fields[error]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        for entry in runs:
            task = progress.add_task(entry.label, total=1.0, error="")

            def advance(share: float, error: float, task: object = task) -> None:
                progress.update(task, completed=share, error=f"error {error:6.1%}")  # type: ignore[arg-type]

            train(entry, digits, advance)
            progress.update(task, completed=1.0)
    show(runs)
    draw(runs, OUT / "methods.png")
    print(f"figure: {(OUT / 'methods.png').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
