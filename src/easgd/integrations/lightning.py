"""Elastic averaging as a callback of Lightning's `Trainer` (extra `lightning`).

    trainer = Trainer(max_epochs=10, callbacks=[ElasticAveraging(easgd.EASGD(period=10))])
    trainer.fit(model, loader)

Module, data and trainer stay as they are; `easgd launch -n 4 train.py` makes them four workers.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from easgd.errors import refuse
from easgd.extras import require
from easgd.integrations.attachment import Attachment
from easgd.methods import Method
from easgd.worker import seeding
from easgd.worker.context import RunContext
from easgd.worker.worker import Worker

Callback: Any = require("lightning.pytorch", "lightning", "easgd.integrations.lightning").Callback
STATE = "easgd"  # the key of a checkpoint that holds the worker's own weights


class ElasticAveraging(Callback):  # type: ignore[misc]
    """Trains with an elastic method; validates, tests and saves the center, as `WeightAveraging` does its average.

    Each worker writes under `default_root_dir/worker-RANK` and logs what it measures of its exchanges (`easgd/…`) to
    the trainer's own loggers every `log_every_n_steps`. Loaders give each worker batches of its own, also those that do
    not shuffle. When `fit` ends the module holds the center.

    A checkpoint's `state_dict` is the center; `fit(ckpt_path=…)` goes on from the worker's own weights beside it.

    Args:
        method: for instance `easgd.EASGD(period=10)`.
        settings: further arguments of `easgd.attach`.
    """

    def __init__(self, method: Method, **settings: Any) -> None:
        self._reseed = bool(settings.get("reseed", True)) and not RunContext.from_environment().alone
        self.attachment = Attachment(method, {**settings, "reseed": False})
        self._state: dict[str, Any] | None = None
        self._logged = 0
        self._left: list[Path] = []  # folders that loggers had opened under the common root

    @property
    def worker(self) -> Worker | None:
        """The worker, from the start of the training on."""
        return self.attachment.worker

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        old, new = trainer.default_root_dir, self.attachment.folder(trainer.default_root_dir)
        if stage != "fit" or Path(old).name == Path(new).name:
            return
        trainer._default_root_dir = new
        for logger in trainer.loggers:
            if getattr(logger, "_root_dir", None) == old:
                self._left.append(_move(logger, new))

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        # The loader is asked for its first batches before `on_train_start`: attaching would reseed too late.
        if self._reseed:
            seeding.reseed(self.attachment.context.rank, self.attachment.context.incarnation)
            self.attachment.open_stream(pl_module).watch()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise refuse(
                "optimizers", len(trainer.optimizers), "the callback ties one optimizer's parameters to a center",
                "call easgd.attach for each model and optimizer in on_train_start",
            )  # fmt: skip
        self.attachment.attach(pl_module, trainer.optimizers[0], self._state, trainer.global_step)
        self._state = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # Lightning takes the gradient inside optimizer.step, and training_step need not call the module's forward.
        self.attachment.begin_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        self.attachment.end_step(step)
        if step != self._logged and step % trainer.log_every_n_steps == 0:
            self._logged, values = step, self.attachment.observables.take()
            for logger in trainer.loggers if values else ():
                logger.log_metrics(values, step=step - 1)  # the step under which Lightning logs this batch

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.attachment.swap_in()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.attachment.swap_out()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.attachment.swap_out()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.attachment.swap_in()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.attachment.finish()
        # Not before: another worker that starts now may be about to open a file in them.
        while self._left:
            folder = self._left.pop()
            with suppress(OSError):  # another worker's files may be there still, or a former run's
                folder.rmdir()
                folder.parent.rmdir()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.attachment.training:
            checkpoint[STATE] = self.attachment.state()
            checkpoint["state_dict"] = self.attachment.center()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._state = checkpoint.get(STATE)


def _move(logger: Any, root: str) -> Path:
    """Move a TensorBoard or CSV logger to another root, with what it has opened before any callback is asked.

    Returns the folder that it leaves.
    """
    left = Path(logger.log_dir)
    if hasattr(logger._experiment, "close"):
        logger._experiment.close()
    logger._experiment = None
    for name in ("_root_dir", "_save_dir"):
        if hasattr(logger, name):
            setattr(logger, name, root)
    for events in left.glob(f"events.out.tfevents.*.{os.getpid()}.*"):
        events.unlink()
    return left
