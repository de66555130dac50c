"""Normalisation statistics measured anew at the center, instead of averaged or borrowed from a worker."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from easgd.errors import SettingError


@torch.no_grad()
def recalibrated(model: nn.Module, state: dict[str, Tensor], batches: Iterable[Any] | None) -> dict[str, Tensor]:
    """Return `state` with BatchNorm's running mean and variance over `batches` (inputs, or (inputs, …) tuples)."""
    if batches is None:
        raise SettingError('buffers="recalibrate" needs inputs; write worker.center(batches)')
    net = copy.deepcopy(getattr(model, "_orig_mod", model))
    net.load_state_dict(state)
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over all batches
    net.eval()
    for norm in norms:
        norm.train()
    for batch in batches:
        net(batch[0] if isinstance(batch, tuple | list) else batch)
    return {name: value.detach().clone() for name, value in net.state_dict().items()}
