"""The closing table of a run: its errors, and where the time went, as in the paper's table."""

from __future__ import annotations

import math

from easgd.training.run import Run


def closing(run: Run) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = run.evaluations
    split = run.breakdown()
    clock = "virtual seconds" if run.config.engine == "simulate" else "seconds"
    table = Table(title=f"{run.label} on {run.config.data}: {run.status['state']}", title_justify="left", box=None)
    table.add_column()
    table.add_column()
    if rows:
        table.add_row("test error of the center", f"{rows[-1]['test_error']:.2%} (best {run.best_error:.2%})")
        table.add_row(
            "test loss, training loss of the center", f"{rows[-1]['test_loss']:.4f}, {rows[-1]['train_loss']:.4f}"
        )
        if (own := run.workers_loss) is not None:
            table.add_row("loss of the workers' last batches", f"{own:.4f}")
        table.add_row(clock, f"{rows[-1]['time']:.2f}")
    total = split.compute + split.data + split.communication
    if total > 0 and math.isfinite(total):
        table.add_row("steps of a worker", str(split.steps))
        table.add_row("compute / data / communication", f"{split} s of a worker, {split.compute / total:.1%} computing")
    table.add_row("run folder", str(run.path))
    table.add_row("page", f"easgd report {run.path}")
    Console(soft_wrap=True).print(table)
