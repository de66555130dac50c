"""What remains of a run when its workers have ended: the center. Torch is imported only if there is one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.engines.local.control import Control
from easgd.launch.output import say

if TYPE_CHECKING:
    from torch import Tensor


def final_center(run: Path) -> dict[str, Tensor] | None:
    """Return the center of a run whose workers have ended, if it has one."""
    if not Control.exists(run):
        return None
    from easgd.engines.local import client as shared

    return shared.read_center(run)


def save_center(center: dict[str, Tensor], out: Path) -> Path | None:
    """Write the center to `<out>/center.safetensors`, whole or not at all; return the path."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path, scratch = out / "center.safetensors", out / ".center.safetensors.tmp"
    try:
        # safetensors refuses tensors that share memory or lie in another order.
        save_file({name: tensor.clone().contiguous() for name, tensor in center.items()}, scratch)
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        scratch.unlink(missing_ok=True)
        say(f"warning: the center could not be saved in {path}: {error}")
        return None
    return path
