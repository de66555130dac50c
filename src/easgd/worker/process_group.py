"""What `attach` makes of a torch process group that no launcher of ours has made: torchrun's, or one of the script's.

    process_group=…                        its ranks are the workers
    torchrun, a plain model                all ranks are the workers
    torchrun, a model that DDP, FSDP2 or   all ranks are one replica already: one worker, alone, which is a group
    tensor parallelism spreads over them

Inside `easgd launch --nproc-per-worker` torchrun's variables describe the ranks of one worker: none of this applies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from easgd.dtensors import is_sharded
from easgd.errors import SettingError
from easgd.methods import Method
from easgd.worker.context import RunContext

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SCHEME = "collective"


def in_process_group(
    context: RunContext, model: nn.Module, process_group: Any, env: Mapping[str, str] = os.environ
) -> RunContext:
    """Return a worker's place among the ranks of a process group, where there is one; else the context as it is."""
    if not context.alone:
        if process_group is not None and dist.get_world_size(process_group) != context.nproc:
            raise SettingError(
                "process_group: `easgd launch` has made the workers, and gives each its ranks; leave process_group out"
            )
        return context
    rank, workers = _place(model, process_group, env)
    if workers == 1:
        return context
    out = Path(env["EASGD_OUT"]) if env.get("EASGD_OUT") else None
    return replace(context, rank=rank, workers=workers, run=f"{SCHEME}:", out=out)


def _place(model: nn.Module, process_group: Any, env: Mapping[str, str]) -> tuple[int, int]:
    if not dist.is_available():
        return 0, 1
    if process_group is not None:
        if not dist.is_initialized() or dist.get_rank(process_group) < 0:
            raise SettingError("process_group: this process is not in it; give attach a group that it belongs to")
        return dist.get_rank(process_group), dist.get_world_size(process_group)
    if spread(model):
        return 0, 1
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if all(env.get(name) for name in _RENDEZVOUS):
        return int(env["RANK"]), int(env["WORLD_SIZE"])
    return 0, 1


def own_device() -> torch.device:
    """The first accelerator that this process is shown, else the CPU; ranks of torchrun or a group take one each."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return torch.device("cpu")
    return torch.device(found.type, int(os.environ["LOCAL_RANK"])) if "LOCAL_RANK" in os.environ else found


def spread(model: nn.Module) -> bool:
    """Whether the ranks of a process group train this model together: as one replica (DDP), or in parts (DTensor)."""
    parallel = nn.parallel.DistributedDataParallel
    return any(isinstance(m, parallel) for m in model.modules()) or any(map(is_sharded, model.parameters()))


def check_synchronous(context: RunContext, method: Method, schedule: str) -> None:
    """Refuse a method that exchanges at any time: a process group moves only when all its ranks do."""
    if context.run == f"{SCHEME}:" and schedule != "sync":
        how = f"{method.name}(sync=True, …)" if hasattr(method, "sync") else "a synchronous method, EASGD(sync=True, …)"
        raise SettingError(
            f"{method.name} exchanges whenever a worker is ready, and torchrun's process group only all at once; "
            f"write {how}, or start it with `easgd launch -n {context.workers} train.py`"
        )
