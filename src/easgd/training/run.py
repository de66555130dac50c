"""A run that exists: what its folder tells, for reports, notebooks and programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from easgd.errors import refuse
from easgd.records import Breakdown, Record, breakdown, last_losses, read_records
from easgd.training.config import Config
from easgd.training.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = ("time", "steps", "version", "bytes", "train_loss", "test_loss", "test_error")
Curve = npt.NDArray[np.float64]


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return evaluations as one array per column; what was not measured is NaN."""
    return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in COLUMNS}


class Run:
    """The folder of a run, read.

    >>> import easgd
    >>> config = easgd.Config(method="easgd", engine="simulate", network="digits-mlp", steps=60)
    >>> run = Run(easgd.train(config, "runs/one").path)
    >>> bool(run.curves()["test_error"].min() < 0.2), sorted(run.center)[:2]
    (True, ['layers.1.bias', 'layers.1.weight'])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = RunFolder(path)
        self.path = self.folder.path
        self.config: Config = self.folder.config()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.label}, {self.status['state']})"

    @property
    def label(self) -> str:
        return self.config.label

    @property
    def status(self) -> dict[str, Any]:
        """State, reason and seconds of the run."""
        return self.folder.status

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """What was measured of the center, one entry per snapshot."""
        return self.folder.evaluations()

    def curves(self) -> dict[str, Curve]:
        """Time, steps, center updates, bytes, training loss, test loss and test error as arrays."""
        return curves_of(self.evaluations)

    def frame(self) -> Any:
        """The curves as a pandas DataFrame, where pandas is installed."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise refuse("pandas", "not installed", "frame() needs it", "use curves(), or install pandas") from error
        return pandas.DataFrame(self.curves())

    @property
    def best_error(self) -> float:
        """The smallest test error that the center reached; NaN if none was measured."""
        errors = self.curves()["test_error"]
        return float(np.nanmin(errors)) if np.isfinite(errors).any() else float("nan")

    def reached(self, level: float) -> float | None:
        """The first time at which the center's test error is at most `level`; None if it never was."""
        curves = self.curves()
        hits = np.flatnonzero(curves["test_error"] <= level)
        return float(curves["time"][hits[0]]) if len(hits) else None

    def records(self) -> Iterator[Record]:
        """Every step and event of every worker."""
        return read_records(self.path)

    @property
    def workers_loss(self) -> float | None:
        """Mean over the workers of their last online losses."""
        last = last_losses(self.records())
        return sum(last.values()) / len(last) if last else None

    def breakdown(self, worker: int | None = None) -> Breakdown:
        """Where the time went, as in the paper's table."""
        return breakdown(self.records(), worker)

    @property
    def center(self) -> dict[str, Tensor]:
        """The final center as a state dict of the model."""
        from safetensors.torch import load_file

        if not self.folder.model.exists():
            raise refuse("run", self.path, "it has no final center yet", f"resume it: easgd train --resume {self.path}")
        return dict(load_file(self.folder.model))
