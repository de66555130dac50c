"""TensorBoard events beside another view (extra `tensorboard`)."""

from __future__ import annotations

from typing import Any

from easgd.errors import refuse
from easgd.training.config import Config
from easgd.training.monitor import Monitor
from easgd.training.view import Row, View


class Events:
    """Passes everything on to `view`, and writes the measures as scalars into RUN/tensorboard."""

    def __init__(self, view: View) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            remedy = "pip install 'easgd[tensorboard]'"
            raise refuse("tensorboard", "not installed", "--tensorboard needs it", remedy) from error
        self.view, self._make = view, SummaryWriter
        self._writer: Any = None

    def begin(self, config: Config, folder: str) -> None:
        self._writer = self._make(f"{folder}/tensorboard")
        self.view.begin(config, folder)

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        self.view.progress(share, monitor, seconds)

    def evaluated(self, row: Row, share: float, rest: tuple[int, int] | None = None) -> None:
        """Write the measures against the steps of all workers; TensorBoard's wall time is the run's own time."""
        for name in ("train_loss", "test_loss", "test_error"):
            self._writer.add_scalar(f"center/{name}", row[name], row["steps"], walltime=row["time"])
        self.view.evaluated(row, share, rest)

    def note(self, text: str) -> None:
        self.view.note(text)

    def end(self, state: str, reason: str) -> None:
        self._writer.close()
        self.view.end(state, reason)
