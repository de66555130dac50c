"""What a run leaves: the center, exit codes, records. Torch is imported only if there is a center."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.files import atomic
from easgd.launch.output import say
from easgd.records import Breakdown, Record, breakdown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Result:
    """What a run leaves.

    Attributes:
        center: state dict of x̃ (of its average z, where the method keeps one); None if no worker attached.
        exit_codes: of each rank's last incarnation; negative for a signal.
        records: all workers' steps and events, and the launcher's.
    """

    center: dict[str, Tensor] | None
    exit_codes: list[int]
    records: list[Record] = field(repr=False)

    def breakdown(self, worker: int | None = None) -> Breakdown:
        """Where the time went, of one worker or in the mean, as in the paper's table."""
        return breakdown(self.records, worker)


def save_center(center: dict[str, Tensor], out: Path) -> Path | None:
    """Write the center to `<out>/center.safetensors`, whole or not at all; return the path, None if that failed."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = out / "center.safetensors"
    try:
        with atomic(path) as scratch:
            # safetensors refuses tensors that share memory or lie in another order.
            save_file({name: tensor.clone().contiguous() for name, tensor in center.items()}, scratch)
    except (OSError, SafetensorError) as error:
        say(f"warning: the center could not be saved in {path}: {error}")
        return None
    return path
