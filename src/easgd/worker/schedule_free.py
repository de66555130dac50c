"""Replicas of schedule-free optimizers (Defazio et al., "The Road Less Scheduled", 2024), which have three points.

    z   takes the steps
    x   the average of the z so far: what is evaluated
    y = (1 − β)z + βx, where the gradient is taken

The parameters hold y while the optimizer is in train mode and x in eval mode; z is in the optimizer's state. The
elastic variable is x: it is what the center will be compared with. An exchange moves y and z by the same −d, and so x
by −d as well. The optimizer's step does not see such a shift of all three but in the gradient and in weight decay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from easgd.dtensors import local
from easgd.errors import SettingError
from easgd.flat import Replica, ReplicaPart, in_memory_order
from easgd.worker.tensors import SCHEDULE_FREE


def is_schedule_free(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has the shape of the `schedulefree` package's: it sums up the weights of an average."""
    return any("weight_sum" in group for group in optimizer.param_groups)


def replica_of(params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> Replica:
    """Return the replica that fits the optimizer."""
    return (ScheduleFreeReplica if is_schedule_free(optimizer) else Replica)(params, optimizer)


def check_kind(replica: Replica) -> None:
    """Refuse an optimizer that has become schedule-free after `attach`."""
    if is_schedule_free(replica.optimizer) and not isinstance(replica, ScheduleFreeReplica):
        raise SettingError(f"the optimizer has become schedule-free; {SCHEDULE_FREE}")


def train_modes(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Return for each group whether its parameters hold y; empty for all other optimizers."""
    return [bool(group["train_mode"]) for group in optimizer.param_groups if "train_mode" in group]


def set_train_modes(optimizer: torch.optim.Optimizer, modes: Sequence[bool]) -> None:
    """Say what the parameters hold, where they are changed as a whole: nothing is moved."""
    for group, mode in zip(optimizer.param_groups, modes, strict=False):
        group["train_mode"] = mode


class ScheduleFreeReplica(Replica):
    """A replica whose vector is x, wherever the parameters are."""

    def __init__(self, params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        super().__init__(params, optimizer)
        self._flat, self._lone = None, False  # a lone parameter holds y, which is not the vector

    def _z(self) -> Iterator[tuple[int, Tensor, float | None]]:
        """Yield for each parameter that has a z: its place, z, and β if it holds y."""
        for group in self.optimizer.param_groups:
            beta = float(group["betas"][0] if "betas" in group else group["momentum"])
            for p in group["params"]:
                z = self.optimizer.state[p].get("z") if p in self.optimizer.state else None
                if z is not None and id(p) in self._index:
                    i = self._index[id(p)]
                    yield i, self._stretch(in_memory_order(local(z)), i), beta if group.get("train_mode") else None

    def read(self) -> Tensor:
        """Return x = y + (1 − 1/β)(z − y)."""
        out = super().read()
        self.wait()  # what comes from a device is changed here
        pieces = torch.split(out, self.sizes)
        for i, z, beta in self._z():
            if beta is not None:
                pieces[i].lerp_(z.to(out.device, out.dtype), 1 - 1 / beta)
        return out

    def part(self, start: int, stop: int) -> Replica:
        """Return a stretch of the vector as a replica of its own."""
        return self if (start, stop) == (0, self.size) else ScheduleFreePart(self, start, stop)

    def in_place(self) -> list[tuple[Tensor, float]] | None:
        """The step mixes y with z: the parameters cannot be moved alone."""
        return None

    def write_(self, x: Tensor) -> None:
        """Move y and z so that x is the one given; without a z, all three are the parameters."""
        if next(self._z(), None) is None:
            super().write_(x)
        else:
            self.add_(x - self.read())

    def add_(self, d: Tensor, alpha: float = 1.0) -> None:
        """Add alpha·d to y and z, and so to x."""
        super().add_(d, alpha)
        pieces = torch.split(d, self.sizes)
        for i, z, _ in self._z():
            z.add_(pieces[i].to(z.device), alpha=alpha)

    def reset_(self, x: Tensor) -> None:
        """Begin at x, with an average of its own."""
        self.optimizer.state.clear()
        for group in self.optimizer.param_groups:
            group.update({name: value for name, value in _BEGINNING.items() if name in group})
        super().reset_(x)


class ScheduleFreePart(ReplicaPart, ScheduleFreeReplica):
    """A stretch of such a replica."""


_BEGINNING: dict[str, Any] = {"k": 0, "weight_sum": 0.0, "lr_max": -1.0}
