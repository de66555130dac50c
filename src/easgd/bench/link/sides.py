"""What the cases of the race do to a model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from easgd.bench.link.cases import ALONE, POST_LOCAL_PERIOD, TORCHFT, Case
from easgd.bench.link.jobs import Job
from easgd.worker.attach import attach

POST_LOCAL_START, POST_LOCAL_WARMUP = 2, 9
"""The averager counts from 0: with 9, parameters are averaged after steps 10, 20, …, where they are measured."""
POWERSGD_RANK, POWERSGD_START = 2, 2
"""PowerSGD's first steps reduce whole gradients: two, the fewest that it allows with error feedback."""

ONE_BUCKET = 100_000
"""Megabytes that no model of a job has."""


class Side:
    """One process alone; the base of the others."""

    synchronous = False

    def __init__(self, contestant: Case, job: Job) -> None:
        self.rank = 0
        self.exchanging: list[float] = []
        """Seconds of each step that the training thread spent in an exchange, where the side knows them."""
        self.plain: nn.Module = job.model()
        self.model: nn.Module = self.plain
        self.optimizer: torch.optim.Optimizer = job.optimizer(self.plain, contestant.momentum)

    def meet(self) -> None:
        """Wait for the other worker before the clock starts."""

    def agree(self, stop: bool) -> bool:
        """Return whether to stop; workers that wait for each other stop together."""
        return stop

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the model to measure."""
        return {name: value.clone() for name, value in self.plain.state_dict().items()}

    def close(self) -> None:
        """End what the side holds open; one process alone holds nothing."""


class Synchronous(Side):
    """A rank of a process group on gloo; the base of those that wait for each other."""

    synchronous = True

    def __init__(self, contestant: Case, job: Job) -> None:
        super().__init__(contestant, job)
        distributed.init_process_group("gloo")
        self.rank = distributed.get_rank()

    def meet(self) -> None:
        distributed.barrier()

    def agree(self, stop: bool) -> bool:
        flag = torch.tensor(float(stop))
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return bool(flag)

    def close(self) -> None:
        distributed.destroy_process_group()


class DataParallel(Synchronous):
    """DistributedDataParallel, with one of its hooks or none."""

    def __init__(self, contestant: Case, job: Job) -> None:
        super().__init__(contestant, job)
        # PowerSGD reduces from callbacks, whose order among several buckets may differ between the ranks: gloo aborts.
        cap = ONE_BUCKET if contestant.name == "ddp-powersgd" else None
        wrapped = DistributedDataParallel(self.plain, bucket_cap_mb=cap)
        self.model = wrapped
        if contestant.name in HOOKS:
            HOOKS[contestant.name](self, wrapped)

    def average_after_warmup(self, wrapped: DistributedDataParallel) -> None:
        """Reduce gradients for the first steps, then only the parameters, every few steps."""
        hook: Any = post_localSGD_hook
        state = hook.PostLocalSGDState(
            None, None, start_localSGD_iter=POST_LOCAL_START, post_local_gradient_allreduce=False
        )
        wrapped.register_comm_hook(state, hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=POST_LOCAL_PERIOD, warmup_steps=POST_LOCAL_WARMUP)
        self.optimizer = PostLocalSGDOptimizer(optim=self.optimizer, averager=averager)


def _fp16(_: DataParallel, wrapped: DistributedDataParallel) -> None:
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _powersgd(_: DataParallel, wrapped: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
    )
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS: dict[str, Callable[[DataParallel, DistributedDataParallel], None]] = {
    "ddp-fp16": _fp16,
    "ddp-powersgd": _powersgd,
    "post-local": DataParallel.average_after_warmup,
}


class Elastic(Side):
    """A method of this library; the center is measured, as its user would."""

    def __init__(self, contestant: Case, job: Job) -> None:
        super().__init__(contestant, job)
        assert contestant.method is not None
        self.worker = attach(self.plain, self.optimizer, contestant.method, patience=1000)
        self.rank = self.worker.rank
        self.worker.recorder.listen(lambda step: self.exchanging.append(step.communication + step.waiting))

    def weights(self) -> dict[str, Tensor]:
        return {**super().weights(), **self.worker.center()}

    def close(self) -> None:
        self.worker.close()


@contextmanager
def side_of(contestant: Case, job: Job) -> Iterator[Side]:
    """Give the side of a case, and close it."""
    side = _kind(contestant)(contestant, job)
    try:
        yield side
    finally:
        side.close()


def _kind(contestant: Case) -> type[Side]:
    if contestant.name == ALONE:
        return Side
    if contestant.name == TORCHFT:
        from easgd.bench.link.torchft_side import TorchftDiLoCo

        return TorchftDiLoCo
    return Elastic if contestant.method is not None else DataParallel
