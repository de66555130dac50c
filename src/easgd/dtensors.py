"""This rank's part of a tensor that FSDP2 or tensor parallelism has spread over the ranks of a device mesh.

`torch.distributed.tensor` is imported only where a script has: it takes a second, and most scripts have no DTensor.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from easgd.errors import SettingError


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part, which shares the tensor's memory; a tensor that is not sharded is its own part."""
    if not is_sharded(tensor):
        return tensor
    spread: Any = tensor.detach()
    part: Tensor = spread.to_local()
    return part


def piece_of(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shape of the whole tensor and where this rank's part begins in it; None for one that is whole."""
    if not is_sharded(tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    spread: Any = tensor
    if any(placement.is_partial() for placement in spread.placements):
        raise SettingError("a parameter is a DTensor with partial values; redistribute it before easgd.attach")
    shape, offset = compute_local_shape_and_global_offset(spread.shape, spread.device_mesh, spread.placements)
    here = tuple(local(tensor).shape)
    if tuple(shape) != here:
        raise SettingError(f"a parameter of placements {spread.placements} has {here} here, not {tuple(shape)}")
    # Where this rank has nothing of the tensor, the offset lies at its end or beyond.
    return tuple(spread.shape), tuple(offset)
