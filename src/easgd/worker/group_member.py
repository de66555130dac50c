"""A process that is one rank of a worker: what it does beside exchanging.

A model that DDP, FSDP2 or tensor parallelism spreads over the ranks is trained together by the script itself. A plain
model is not: there every step begins with the mean of the ranks' gradients, so that the group is one worker all the
same.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from easgd.dtensors import is_sharded
from easgd.errors import SettingError
from easgd.groups.communicator import WorkerGroup
from easgd.worker.context import RunContext
from easgd.worker.process_group import spread


class GroupMember:
    """One rank of a group, from `attach` on."""

    def __init__(
        self, context: RunContext, model: nn.Module, optimizer: torch.optim.Optimizer, deadline: float
    ) -> None:
        self.context, self.optimizer = context, optimizer
        _check(model)
        self.averages = not spread(model)
        self.dimensions = max((p.device_mesh.ndim for p in model.parameters() if is_sharded(p)), default=0)  # type: ignore[attr-defined]
        self.by_tensors = self.dimensions > 0 and not any(map(_is_fsdp2, model.modules()))
        self.group = WorkerGroup(context.member, context.nproc, context.center, deadline)

    @property
    def stream(self) -> tuple[int, int]:
        """This rank's random stream, of how many; a script that spreads its model decides how its ranks differ."""
        context = self.context
        if not self.averages:
            return context.rank, context.workers
        return context.rank * context.nproc + context.member, context.workers * context.nproc

    def data_place(self) -> tuple[int, int]:
        """Return whose order of the data this rank reads, of how many: ranks that split a tensor see the same batch."""
        context = self.context
        if self.by_tensors:
            return context.rank, context.workers
        if self.dimensions > 1:
            raise SettingError(
                f"worker.shard: on a mesh of {self.dimensions} dimensions it cannot know which ranks share a batch; "
                "use a DistributedSampler with the data-parallel rank"
            )
        return context.rank * context.nproc + context.member, context.workers * context.nproc

    def before_step(self, closure: bool) -> None:
        """Average the gradients where the script does not."""
        if not self.averages:
            return
        if closure:
            raise SettingError("a closure computes its gradients inside the step; wrap the model in DDP for a group")
        params = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.group.average_gradients_(params)


def _check(model: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules()):
        raise SettingError("FullyShardedDataParallel hides its shards; use torch's fully_shard (FSDP2)")


def _is_fsdp2(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)
