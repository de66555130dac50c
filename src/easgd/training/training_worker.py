"""What every worker process of `easgd train` does: the loop a user would write, and its part of the checkpoints.

A checkpoint is a barrier. The process that started the run opens a draft folder. Every worker that sees it saves its
own state between two steps, when no exchange is under way, and waits until the draft is gone: by then the center is
saved as well, and all parts belong to one moment. If a worker does not come in time the draft is given up.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from easgd import checkpoint
from easgd.data import Loader
from easgd.learning_rate import first_drop
from easgd.models import seed_dropout
from easgd.training.checkpoints import SUFFIX, Checkpoints
from easgd.training.config import Config
from easgd.training.folder import RunFolder
from easgd.training.task import Task, loss, seed_of
from easgd.worker.attach import attach
from easgd.worker.worker import Worker

LOOK = 0.1
STOP, FINAL = "stop", ".final"


class TrainingWorker:
    """One worker of a run."""

    def __init__(self, config: Config, folder: RunFolder, saved: dict[str, Any] | None) -> None:
        # Ctrl-C is obeyed between two steps, also one that comes before the first.
        self.stopping = False
        signal.signal(signal.SIGINT, lambda number, frame: setattr(self, "stopping", True))
        torch.set_num_threads(1)
        self.config, self.folder = config, folder
        self.task = Task(config)
        warm_up(self.task)
        self.model = self.task.model()
        self.optimizer = self.task.optimizer(list(self.model.parameters()))
        self.scheduler = self.task.scheduler(self.optimizer)
        self.worker: Worker = attach(
            self.model, self.optimizer, config.make_method(), seed=config.seed,
            compression=None if config.compression == "none" else config.compression, guard=config.guard,
            saved=None if saved is None else saved["center"],
        )  # fmt: skip
        context = self.worker.context
        # The workers of one machine share the loaders' cursors.
        run = context.shared_folder
        shared = run / "cursors" if run is not None and run.is_dir() else None
        self.loader: Loader = self.task.loader(context.rank, cursors=shared)
        own = None if saved is None or context.incarnation else saved.get(f"worker-{context.rank}")
        if saved is not None and own is not None:
            if shared is not None:  # on a cluster, each worker has its own
                own["loader"]["cursors"] = furthest(saved)
            self._load(own)
        self.most = max(1, round(self.task.most_steps / context.workers)) if self.task.most_steps < 1e18 else None
        self._next_look = 0.0
        slow = [fault for fault in folder.faults() if fault.what == "slow" and fault.worker == context.rank]
        self._slow = sorted((fault.time, fault.amount) for fault in slow)

    def run(self) -> None:
        """Train until the budget is used up or a stop is requested, then save the last state."""
        self.model.train()
        batches = self.worker.recorder.timed(self.loader)
        while not self._over():
            batch, began = next(batches), time.thread_time()
            seed_dropout(self.model, seed_of(self.config.seed, self.worker.rank, self.worker.clock))
            value = loss(self.model, batch)
            self.optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            # Processor time: a gradient in which the worker was stopped for 20 s would go on for minutes.
            self._slow_down(time.thread_time() - began)
            self.worker.recorder.loss = online = float(value.detach())
            self.optimizer.step()
            self._schedule_lr(online)
        self._finish()

    def _slow_down(self, seconds: float) -> None:
        """By the plan of faults, let a gradient that took so long take a multiple of it; a new incarnation does not."""
        factors = [factor for moment, factor in self._slow if self.worker.recorder.now() >= moment]
        if factors and not self.worker.context.incarnation:
            time.sleep(max(0.0, factors[-1] - 1) * seconds)

    def _schedule_lr(self, online: float) -> None:
        if first_drop(self.scheduler, online) and self.worker.method.averages_from_first_drop:
            self.worker.begin_average()
        if self.scheduler is not None:
            self.scheduler.step()

    def _over(self) -> bool:
        """Return whether training is over; every `LOOK` seconds, look for a checkpoint draft and the stop file."""
        now = time.monotonic()
        if self.most is not None and self.worker.clock >= self.most:
            return True
        if self.config.seconds is not None and self.worker.recorder.now() >= self.config.seconds:
            return True
        if now >= self._next_look:
            self._next_look = now + LOOK
            self._join_checkpoint()
            self.stopping = self.stopping or (self.folder.path / STOP).exists()
        return self.stopping

    # saving ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that decides this worker's next steps."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "worker": self.worker.state_dict(),
            "loader": self.loader.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.worker.load_state_dict(state["worker"])
        self.loader.load_state_dict(state["loader"])

    def _join_checkpoint(self) -> None:
        """Save this worker's part of a checkpoint that is being drafted, and wait until the draft is gone."""
        for draft in self.folder.checkpoints.glob(".[0-9]*"):
            self._save(draft)
            while draft.exists() and not self.stopping:
                time.sleep(0.002)

    def _save(self, draft: Path) -> None:
        self.worker.recorder.flush()  # what is recorded and what is saved belong to one moment
        # If the disk does not take it, the process that opened the draft misses this part and says so.
        with suppress(OSError):
            checkpoint.save(draft / f"worker-{self.worker.rank}{SUFFIX}", self.state())

    def _finish(self) -> None:
        final = self.folder.checkpoints / FINAL
        with suppress(OSError):
            final.mkdir(parents=True, exist_ok=True)
        self._save(final)
        self.loader.close()
        self.worker.close()


def furthest(saved: dict[str, Any]) -> Tensor:
    """Return the loaders' shared cursors: each worker saved them at its own moment, and they only go forward."""
    found = [state["loader"]["cursors"] for name, state in saved.items() if name.startswith("worker-")]
    return torch.stack(found).amax(0)


def warm_up(task: Task) -> None:
    """Compute one step on a model that is thrown away.

    The first batch, backward pass and optimizer step of a process import and compile for seconds. Done before the
    worker joins, that is no part of the training's time.
    """
    model = task.model().train()
    seed_dropout(model, 0)  # the global generator stays as it is
    images, labels = next(task.loader(0, ahead=0))
    loss(model, (images[:2], labels[:2])).backward()  # type: ignore[no-untyped-call]
    task.optimizer(list(model.parameters())).step()


def work(settings: dict[str, Any], path: str, resumed: bool) -> None:
    """Train; called in every worker process."""
    folder = RunFolder(path)
    saved = Checkpoints(folder.checkpoints).load(clean=False) if resumed else None
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    TrainingWorker(Config.from_dict(settings), folder, saved).run()
