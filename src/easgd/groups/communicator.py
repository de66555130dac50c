"""The ranks of one worker, connected by process groups of our own beside the script's.

The launcher gives every rank torchrun's variables; the store that they name is also ours, under names of our own. The
script's own process group is never used: what the exchange's thread sends must not meet its collectives out of order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed  # its stores and groups are not in its list of exports
SLACK_SECONDS = 60.0


class WorkerGroup:
    """One rank's access to the other ranks of its worker.

    Args:
        member: this rank's number in the group.
        size: ranks of the group.
        name: tells the groups of several models of one script apart.
        deadline: seconds that another rank may let this one wait; the launcher ends a group that has lost one.
        env: where MASTER_ADDR and MASTER_PORT are.
    """

    def __init__(self, member: int, size: int, name: str, deadline: float, env: Mapping[str, str] = os.environ) -> None:
        self.member, self.size, self._timeout = member, size, timedelta(seconds=deadline + SLACK_SECONDS)
        server = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False, timeout=self._timeout)
        self._store = dist.PrefixStore(f"easgd/{name}", server)
        self._links: dict[str, Any] = {}
        self.bytes_moved = 0
        """What this rank has given to or taken from collectives of the exchange."""

    def _link(self, purpose: str) -> Any:
        """Return the process group for one purpose: the exchange's thread and the training loop have one each."""
        if purpose not in self._links:
            store = dist.PrefixStore(purpose, self._store)
            self._links[purpose] = dist.ProcessGroupGloo(store, self.member, self.size, self._timeout)
        return self._links[purpose]

    def texts(self, key: str, mine: str) -> list[str]:
        """Give a text under a name that is used once; return every rank's."""
        self._store.set(f"{key}/{self.member}", mine)
        return [bytes(self._store.get(f"{key}/{m}")).decode() for m in range(self.size)]

    def summed(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks."""
        vector = torch.tensor(numbers, dtype=torch.float64)
        self._link("exchange").allreduce(vector).wait()
        self.bytes_moved += 8 * len(numbers)
        out: list[float] = vector.tolist()
        return out

    def broadcast_(self, vector: Tensor, root: int) -> None:
        """Give one rank's vector to all others, in place."""
        self._link("exchange").broadcast(vector, root).wait()
        self.bytes_moved += vector.numel() * vector.element_size()

    def average_gradients_(self, params: Sequence[Tensor]) -> None:
        """Set every gradient to the ranks' mean, as DDP does; one that no rank has stays None."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for p in params:
            by_dtype.setdefault(p.dtype, []).append(p)
        for dtype, some in by_dtype.items():
            given = torch.tensor([float(p.grad is not None) for p in some])
            parts = [p.new_zeros(p.numel()) if p.grad is None else p.grad.detach().reshape(-1) for p in some]
            flat = torch.cat([given.to(dtype), *(part.cpu() for part in parts)])
            self._link("gradients").allreduce(flat).wait()
            held, mean = flat[: len(some)], flat[len(some) :].div_(self.size)
            for has, p, piece in zip(held, some, torch.split(mean, [p.numel() for p in some]), strict=True):
                if not has:
                    continue
                value = piece.view(p.shape).to(p.device)
                p.grad = value.clone() if p.grad is None else p.grad.copy_(value)
