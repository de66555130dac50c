"""What a worker needs of its center, wherever that lives: in shared memory, or in the processes of a cluster."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Door(Protocol):
    """One worker's door to the center of its run. `SharedCenter` and `RemoteCenter` are such doors.

    Attributes:
        locked_seconds: time lost to others since it was last set to zero.
        squares: Σd² of the last elastic answer.
        moved: bytes that went over a network since it was last set to zero; 0 where there is none.
    """

    locked_seconds: float
    squares: float
    moved: int

    @property
    def news(self) -> list[tuple[str, str]]:
        """Remarkable things to be written down, (event, detail)."""

    @property
    def living(self) -> int:
        """How many workers are in the run now."""

    @property
    def version(self) -> int:
        """The master's clock, as far as this worker knows it."""

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from."""

    def gather(self, seconds: float) -> int:
        """Wait until all launched workers have come; return how many are still missing."""

    def begin(self, elapsed: float) -> float:
        """The moment at which training began, on this machine's monotonic clock; `elapsed` is from before."""

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Leave the model's other tensors for whoever reads the final center."""

    def leave(self) -> None:
        """Leave politely."""

    def exchange(self, message: Tensor | None, scale: float) -> Tensor | None:
        """Apply one message and answer it; the answer may take the message's memory. None: it was not finite."""

    def push(self, message: Tensor, scale: float) -> bool:
        """Apply one message that wants no answer; False: it was not finite."""

    def exchange_together(self, message: Tensor | None, scale: float, deadline: float) -> Tensor | None:
        """One synchronous round."""

    def wait_turn(self, deadline: float) -> None:
        """Round-robin: wait until it is this rank's turn."""

    def pass_turn(self) -> None:
        """Round-robin: the next worker may act."""

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all the center's vectors between two exchanges: none is half in it."""

    def state_dict(self) -> dict[str, Tensor]:
        """What is evaluated, as named tensors."""
