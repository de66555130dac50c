"""One run of the table: a setting, trained on the virtual clock, and what came out as one line of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from easgd.bench.worth.jobs import JOBS, Job
from easgd.engines.simulate import Simulation
from easgd.files import read_json_lines
from easgd.launch.output import say
from easgd.methods import SGD, Method, registry

Moments = Literal["kept", "averaged", "reset"]


@dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        job: see `JOBS`.
        workers: p.
        method: key of a method, "alone" for one process, "ddp" for data-parallel training on p workers' batches.
        options: the method's settings.
        rate: the inner learning rate, as a multiple of the job's.
        moments: what becomes of the optimizer's moments at an exchange.
        steps: of each worker.
        seed: of model and data.
        compression: of what is sent; None for float32.
    """

    job: str
    workers: int
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    moments: Moments = "kept"
    steps: int = 400
    seed: int = 0
    compression: str | None = None

    @property
    def key(self) -> str:
        """What tells two settings apart."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def label(self) -> str:
        """The setting in a table."""
        words = {"alone": "one process", "ddp": "DistributedDataParallel"}
        parts = [words.get(self.method) or registry.get(self.method).name]
        parts += [f"{name}={value}" for name, value in self.options.items()]
        parts += [f"η×{self.rate:g}"] if self.rate != 1 else []
        parts += [f"moments {self.moments}"] if self.moments != "kept" else []
        parts += [self.compression] if self.compression is not None else []
        return " ".join(parts)


def run(setting: Setting, job: Job) -> dict[str, Any]:
    """Train; return the measure of what would be shipped and the bytes that one worker sent and received."""
    torch.set_num_threads(1)
    bytes_sent = [0]

    def count(record: Any) -> None:
        if getattr(record, "worker", None) == 0:
            bytes_sent[0] += getattr(record, "bytes", 0) or 0

    simulation = _simulation(setting, job, count)
    sync = simulation.schedule_name == "sync"
    rounds = setting.steps + 1  # the last round's exchange brings the last steps to the center
    moments = _Moments(simulation, setting.moments)
    simulation.run(rounds if sync else rounds * len(simulation.workers), on_tick=lambda _: moments.follow())
    total = bytes_sent[0] + moments.bytes
    if setting.method == "ddp":  # a ring's all-reduce: out and in, 2(p − 1)/p vectors each, every step
        p = setting.workers
        total = setting.steps * 2 * 2 * (p - 1) * 4 * job.x0.numel() // p
    return {"value": job.measure(simulation.center.measured), "bytes": total, "parameters": job.x0.numel()}


def _simulation(setting: Setting, job: Job, on_record: Any) -> Simulation:
    alone = setting.method in ("alone", "ddp")
    method: Method = SGD() if alone else registry.get(setting.method)(**setting.options)
    rate, factor = job.lr * setting.rate, job.schedule(setting.steps)

    def gradient(x: Tensor, worker: int, step: int) -> Tensor:
        if setting.method == "ddp":
            return job.mean_gradient(x, step, setting.workers)
        return job.gradient(x, worker, step)

    return Simulation(
        gradient, job.x0, method, lr=rate, workers=1 if alone else setting.workers,
        schedule="sync" if getattr(method, "sync", False) else "async", seed=setting.seed,
        optimizer=lambda params: job.optimizer(params, rate),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor), on_record=on_record,
        compression=setting.compression,
    )  # fmt: skip


class _Moments:
    """Does to the optimizers' moments, after every exchange, what the setting says.

    Attributes:
        bytes: what one worker sent and received for it.
    """

    def __init__(self, simulation: Simulation, what: Moments) -> None:
        self.simulation, self.what, self._seen = simulation, what, simulation.center.version
        self.bytes = 0

    def follow(self) -> None:
        if self.what == "kept" or self.simulation.center.version == self._seen:
            return
        self._seen = self.simulation.center.version
        states = [dict(w.state.replica.optimizer.state[w.state.replica.params[0]]) for w in self.simulation.workers]
        for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            vectors = [state[name] for state in states if state.get(name) is not None]
            if len(vectors) < len(states):
                continue
            mean = torch.zeros_like(vectors[0]) if self.what == "reset" else torch.stack(vectors).mean(0)
            self.bytes += 2 * mean.numel() * mean.element_size() if self.what == "averaged" else 0
            for vector in vectors:
                vector.copy_(mean)


class Records:
    """Results by setting in a file of JSON lines; a run that is there is not run again.

    Attributes:
        trained: all settings of the file with their results.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = read_json_lines(path) if path.exists() else []
        self.trained = [(Setting(**line["setting"]), line["result"]) for line in lines]
        self._known = {setting.key: result for setting, result in self.trained}

    def results(self, settings: Iterable[Setting]) -> Iterator[tuple[Setting, dict[str, Any]]]:
        """Yield every setting with its result, running what is missing."""
        job: Job | None = None
        todo = list(settings)
        for number, setting in enumerate(todo, 1):
            if setting.key not in self._known:
                say(f"{number} of {len(todo)}: {setting.job}, p = {setting.workers}, {setting.label}")
                # The data's order must be the same for every setting: a new job begins it anew.
                job = JOBS[setting.job](setting.seed)
                result = run(setting, job)
                self._known[setting.key] = result
                self.trained.append((setting, result))
                with open(self.path, "a") as file:
                    file.write(json.dumps({"setting": asdict(setting), "result": result}) + "\n")
            yield setting, self._known[setting.key]
