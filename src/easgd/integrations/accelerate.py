"""Elastic averaging in a loop that Hugging Face accelerate has prepared.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    worker = easgd.attach(model, unwrap(optimizer), easgd.EASGD(period=10))

Under `easgd launch` accelerate sees a single process. A step that accelerate leaves out while it accumulates gradients
is no step of the worker either.
"""

from __future__ import annotations

from typing import Any

import torch


def unwrap(optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer inside accelerate's or Lightning's wrapper; any other is returned as it is.

    Both wrappers never run `Optimizer.__init__`: they have no hooks of their own, and `step` calls the inner one's.
    """
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]
