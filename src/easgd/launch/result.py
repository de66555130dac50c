"""What a run leaves: the center, exit codes, records. Torch is imported only if there is a center."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.launch.output import say
from easgd.records import Breakdown, Record, breakdown
from easgd.worker.context import DEFAULT_CENTER

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Result:
    """What a run leaves.

    Attributes:
        centers: by name, the state dict of x̃ (of its average z, where the method keeps one) of every model that the
            script attached; most scripts have one.
        exit_codes: of each rank's last incarnation; negative for a signal.
        records: all workers' steps and events, and the launcher's.

    Example:
        >>> import easgd
        >>> easgd.Result({}, [0, -9], []).exit_codes  # worker 1 was killed
        [0, -9]
    """

    centers: dict[str, dict[str, Tensor]]
    exit_codes: list[int]
    records: list[Record] = field(repr=False)

    @property
    def center(self) -> dict[str, Tensor] | None:
        """The state dict of the first model's center; None if no worker attached."""
        return self.centers.get(DEFAULT_CENTER, next(iter(self.centers.values()), None))

    def breakdown(self, worker: int | None = None) -> Breakdown:
        """Where the time went, of one worker or in the mean, as in the paper's table."""
        return breakdown(self.records, worker)


def save_centers(centers: dict[str, dict[str, Tensor]], out: Path) -> list[Path]:
    """Write each center whole or not at all, the first to `center.safetensors`, NAME to `centers/NAME.safetensors`.

    Returns the files that were written; one that could not be is told of, and stops nothing.
    """
    saved = []
    for name, center in centers.items():
        path = out / f"{name}.safetensors" if name == DEFAULT_CENTER else out / "centers" / f"{name}.safetensors"
        from easgd.checkpoint import save_tensors  # it imports torch

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(path, center)
            saved.append(path)
        except OSError as error:
            say(f"warning: the center could not be saved in {path}: {error}")
    return saved
