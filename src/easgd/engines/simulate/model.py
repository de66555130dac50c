"""The gradient of a real model, as the simulator wants it: a function of (x, worker, step).

One model serves all virtual workers: a worker's vector is copied in, forward and backward run, the gradient comes out
as one vector. Batch and dropout must depend on (worker, step) alone for a run to repeat bit for bit.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from easgd.flat import pack
from easgd.kernels.allocator import keep_freed_memory

Batch = Callable[[int, int], Any]
Loss = Callable[[nn.Module, Any], Tensor]


class ModelGradient:
    """gradient(x, worker, step) of `loss(model, batch(worker, step))`.

    Args:
        model: copied; the user's own is not touched. Every thread gets a copy, so gradients may run in parallel.
        loss: loss(model, batch), a scalar tensor.
        batch: batch(worker, step).
        before: before(model, worker, step), for instance to seed the dropout of this step.

    Example:
        >>> import torch, easgd
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> gradient = easgd.ModelGradient(model, lambda model, batch: model(batch).square().sum() / 2,
        ...                                lambda worker, step: torch.ones(1, 1))
        >>> gradient(torch.tensor([3.0]), 0, 0)
        tensor([3.])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batch: Batch,
        before: Callable[[nn.Module, int, int], None] | None = None,
    ) -> None:
        keep_freed_memory()
        self._template = copy.deepcopy(model)
        self.x0, _ = pack(copy.deepcopy(model))
        self.loss, self.batch, self.before = loss, batch, before
        self.losses: dict[int, float] = {}
        """The loss of each worker's last gradient: its online training loss."""
        self._local = threading.local()

    def packed(self) -> tuple[nn.Module, Tensor, Tensor]:
        """This thread's model, and its parameters and gradients as one vector each."""
        if not hasattr(self._local, "model"):
            model = copy.deepcopy(self._template)
            self._local.model = (model, *pack(model))
        packed: tuple[nn.Module, Tensor, Tensor] = self._local.model
        return packed

    def __call__(self, x: Tensor, worker: int, step: int) -> Tensor:
        """Return the gradient at x; the vector is the caller's only until this thread asks for the next one."""
        model, vector, gradient = self.packed()
        vector.copy_(x)
        gradient.zero_()
        if self.before is not None:
            self.before(model, worker, step)
        value = self.loss(model, self.batch(worker, step))
        value.backward()  # type: ignore[no-untyped-call]
        self.losses[worker] = float(value.detach())
        return gradient
