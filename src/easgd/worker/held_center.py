"""A model that holds the center's weights for a while, and then its own again, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from easgd.center.layout import Layout
from easgd.worker.schedule_free import set_train_modes, train_modes
from easgd.worker.tensors import full_state

if TYPE_CHECKING:
    from easgd.worker.worker import Worker


class HeldCenter:
    """The worker's own weights are put aside when it is made and loaded again by `release`. Both copy in place."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, center: dict[str, Tensor]) -> None:
        self.model, self.optimizer = model, optimizer
        self.own = copied(model)
        self.modes = train_modes(optimizer)
        self.model.load_state_dict(center)
        # The center is an x: a schedule-free optimizer that is asked for its x now has nothing to move.
        set_train_modes(optimizer, [False] * len(self.modes))

    @torch.no_grad()
    def release(self) -> None:
        """Load the worker's own weights again."""
        self.model.load_state_dict(self.own)
        set_train_modes(self.optimizer, self.modes)


@contextmanager
def holding(model: nn.Module, optimizer: torch.optim.Optimizer, center: dict[str, Tensor]) -> Iterator[None]:
    """Let a model hold other weights inside a `with` block."""
    # A compiled module prefixes its names; the center's state dict has the plain ones.
    held = HeldCenter(getattr(model, "_orig_mod", model), optimizer, center)
    try:
        yield
    finally:
        held.release()


@torch.no_grad()
def compare(worker: Worker, evaluate: Callable[[], float]) -> tuple[float, float]:
    """Evaluate a worker's own weights and the center's, in eval mode."""
    found = []
    for center in (False, True):
        with ExitStack() as stack:
            if center:
                stack.enter_context(worker.at_center())
            elif any(train_modes(worker.replica.optimizer)):
                # The parameters hold y: its x is what is compared.
                x = Layout.of(worker.tensors).split(worker.state.local())
                own = full_state(worker.model, worker.tensors, x)
                stack.enter_context(holding(worker.model, worker.replica.optimizer, own))
            training = worker.model.training
            worker.model.eval()
            try:
                found.append(float(evaluate()))
            finally:
                worker.model.train(training)
    return found[0], found[1]


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's state dict."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
