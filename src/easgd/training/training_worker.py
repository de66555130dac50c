"""What every worker process of `easgd train` does: the loop a user would write, and its part of the checkpoints.

A checkpoint is a meeting. The onlooker opens a draft folder; every worker that sees it saves its own state between two
steps, when no exchange is under way, and waits until the draft is gone. Then the onlooker has taken the center as well,
and all parts belong to one moment. A worker that does not come in time costs the draft, not the run.
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
        self.model = self.task.model()
        self.optimizer = self.task.optimizer(list(self.model.parameters()))
        self.scheduler = self.task.scheduler(self.optimizer)
        self.worker: Worker = attach(
            self.model, self.optimizer, config.make_method(), seed=config.seed,
            compression=None if config.compression == "none" else config.compression,
            saved=None if saved is None else saved["center"],
        )  # fmt: skip
        context = self.worker.context
        # The workers of one machine share the loaders' cursors.
        run = context.shared_folder
        shared = run / "cursors" if run is not None and run.is_dir() else None
        self.loader: Loader = self.task.loader(context.rank, cursors=shared)
        own = None if saved is None or context.incarnation else saved.get(f"worker-{context.rank}")
        if saved is not None and own is not None:
            own["loader"]["cursors"] = furthest(saved)
            self._load(own)
        self.most = max(1, round(self.task.most_steps / context.workers)) if self.task.most_steps < 1e18 else None
        self._next_look = 0.0

    def run(self) -> None:
        """Train until the budget is used up or somebody asks to stop, then leave the last state behind."""
        self.model.train()
        batches = self.worker.recorder.timed(self.loader)
        while not self._over():
            batch = next(batches)
            seed_dropout(self.model, seed_of(self.config.seed, self.worker.rank, self.worker.clock))
            value = loss(self.model, batch)
            self.optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            self.worker.recorder.loss = online = float(value.detach())
            self.optimizer.step()
            self._follow(online)
        self._leave()

    def _follow(self, online: float) -> None:
        """Let η follow its schedule."""
        if first_drop(self.scheduler, online) and self.worker.method.averages_from_first_drop:
            self.worker.begin_average()
        if self.scheduler is not None:
            self.scheduler.step()

    def _over(self) -> bool:
        """Whether this was the last step; now and then, look what the onlooker wants."""
        now = time.monotonic()
        if self.most is not None and self.worker.clock >= self.most:
            return True
        if self.config.seconds is not None and self.worker.recorder.now() >= self.config.seconds:
            return True
        if now >= self._next_look:
            self._next_look = now + LOOK
            self._meet()
            self.stopping = self.stopping or (self.folder.path / STOP).exists()
        return self.stopping

    # saving ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that decides this worker's future."""
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

    def _meet(self) -> None:
        """Take part in a checkpoint that is being drafted, if there is one."""
        for draft in self.folder.checkpoints.glob(".[0-9]*"):
            self._save(draft)
            while draft.exists() and not self.stopping:
                time.sleep(0.002)

    def _save(self, draft: Path) -> None:
        self.worker.recorder.flush()  # what is recorded and what is saved belong to one moment
        # A disk that does not take it is the onlooker's to report: this part will be missing.
        with suppress(OSError):
            checkpoint.save(draft / f"worker-{self.worker.rank}{SUFFIX}", self.state())

    def _leave(self) -> None:
        final = self.folder.checkpoints / FINAL
        with suppress(OSError):
            final.mkdir(parents=True, exist_ok=True)
        self._save(final)
        self.loader.close()
        self.worker.close()


def furthest(saved: dict[str, Any]) -> Tensor:
    """The loaders' shared cursors: each worker saved them at its own moment, and they only go forward."""
    found = [state["loader"]["cursors"] for name, state in saved.items() if name.startswith("worker-")]
    return torch.stack(found).amax(0)


def work(settings: dict[str, Any], path: str, resumed: bool) -> None:
    """Run in every worker process."""
    folder = RunFolder(path)
    saved = Checkpoints(folder.checkpoints).load(clean=False) if resumed else None
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    TrainingWorker(Config.from_dict(settings), folder, saved).run()
