"""Experiment trackers behind one method, `log(metrics, step)`.

    tracker = WandB("digits", mode="offline")
    observables = Observables(worker)
    …
    tracker.log(observables.take(), worker.clock)

Each adapter imports its package when it is made, and keeps its settings: keyword arguments go to the package as they
are. `close` ends the tracker's run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from easgd.extras import require


class Tracker(Protocol):
    """Anything that takes scalars."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Record scalars at a step."""


class TensorBoard:
    """Event files in a folder (extra `tensorboard`)."""

    def __init__(self, folder: str | Path, **settings: Any) -> None:
        require("tensorboard", "tensorboard", "the TensorBoard tracker")
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder), **settings)

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A Weights & Biases run (extra `wandb`); `mode="offline"` needs no account."""

    def __init__(self, project: str, **settings: Any) -> None:
        self.run: Any = require("wandb", "wandb", "the Weights & Biases tracker").init(project=project, **settings)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of an MLflow experiment (extra `mlflow`), through a client of its own: no global run is touched.

    The extra installs `mlflow-skinny`, which writes to a server; to write to a database file, install `mlflow` itself.
    """

    def __init__(self, experiment: str, *, tracking_uri: str | None = None, **settings: Any) -> None:
        self.client: Any = require("mlflow.tracking", "mlflow", "the MLflow tracker").MlflowClient(tracking_uri)
        self.run_id: str = self.client.create_run(self._experiment(experiment), **settings).info.run_id

    def _experiment(self, name: str) -> str:
        known = self.client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self.client.create_experiment(name))
            except require("mlflow.exceptions", "mlflow", "the MLflow tracker").MlflowException:
                known = self.client.get_experiment_by_name(name)  # another worker was faster
                if known is None:
                    raise
        return str(known.experiment_id)

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.client.log_metric(self.run_id, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)
