"""A model that holds the center's weights for a while, and then its own again, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from easgd.worker.schedule_free import set_train_modes, train_modes


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


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's state dict."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
