"""Elastic averaging as a callback of Hugging Face's `Trainer` (extra `transformers`).

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ElasticAveragingCallback(easgd.EASGD(period=10))])
    trainer.train()

`easgd launch -n 4 train.py` makes it four workers. A callback is not told before an evaluation or a save; to evaluate
and save the center while training goes on, add the mixin:

    class ElasticTrainer(ElasticTrainerMixin, Trainer): ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from easgd import checkpoint
from easgd.errors import SettingError
from easgd.extras import require
from easgd.integrations.attachment import Attachment
from easgd.methods import Method
from easgd.worker.worker import Worker

TrainerCallback: Any = require("transformers", "transformers", "easgd.integrations.transformers").TrainerCallback
STATE = "easgd.safetensors"  # the worker's own weights, in each checkpoint's folder


class ElasticAveragingCallback(TrainerCallback):  # type: ignore[misc]
    """Trains with an elastic method. When `train` ends the model holds the center, ready for `save_pretrained`.

    Each worker writes under `output_dir/worker-RANK`, reads the data in an order of its own, and adds what it measures
    of its exchanges (`easgd/…`) to the logs. With `load_best_model_at_end` the model is the one that `Trainer` loads.
    Resuming from a checkpoint in `output_dir` goes on from the worker's own weights.

    Args:
        method: for instance `easgd.EASGD(period=10)`.
        settings: further arguments of `easgd.attach`.
    """

    def __init__(self, method: Method, **settings: Any) -> None:
        self.attachment = Attachment(method, settings)
        self._arguments: Any = None

    @property
    def worker(self) -> Worker | None:
        """The worker, from the start of the training on."""
        return self.attachment.worker

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._own_folder(args)

    def _own_folder(self, args: Any) -> None:
        """Let these arguments name the worker's own folder: once, at the latest when training begins."""
        if self._arguments is not args:
            self._arguments = args
            args.output_dir = self.attachment.folder(args.output_dir)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        self._own_folder(args)
        if self.attachment.settings.get("reseed", True):
            self.attachment.open_stream(model).order(kwargs.get("train_dataloader"))
        saved = self._state_file(args, state)
        restored = checkpoint.load(saved) if saved.exists() else None
        self.attachment.attach(model, optimizer, restored, state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.attachment.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.attachment.end_step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.add_observables(logs)  # `Trainer` has put a copy into its history already
        state.log_history[-1].update({name: value for name, value in logs.items() if name.startswith("easgd/")})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.attachment.training:
            checkpoint.save(self._state_file(args, state), self.attachment.state())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        self.attachment.finish(load_center=not best)

    def add_observables(self, logs: dict[str, float]) -> None:
        """Add what was measured since the last time to the logs of a training step, once."""
        if self.attachment.training and "loss" in logs and "easgd/bytes" not in logs:
            logs.update(self.attachment.observables.take())

    @staticmethod
    def _state_file(args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE


class ElasticTrainerMixin:
    """Put before `Trainer` among the bases: `evaluate`, `predict` and `save_model` use the center while training.

    The observables reach the reporting callbacks (TensorBoard, Weights & Biases, …) too, which run before any other.
    """

    callback_handler: Any

    @property
    def _elastic(self) -> ElasticAveragingCallback:
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ElasticAveragingCallback):
                return callback
        raise SettingError("ElasticTrainerMixin has no callback; add callbacks=[ElasticAveragingCallback(method)]")

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._elastic.attachment.held():
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._elastic.attachment.held():
            return super().predict(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        with self._elastic.attachment.held():
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        self._elastic.add_observables(logs)
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
