"""A center in the worker's own memory: what a script that trains alone has, where its method keeps an average."""

from __future__ import annotations

import time

from torch import Tensor

from easgd.center.client import JoinRequest, Move
from easgd.center.guard import Refusal
from easgd.center.whole import Center


class MemoryClient:
    """One worker's access to a center that is its own; a `CenterClient` without anybody to wait for."""

    living = 1
    hides_rounds = False
    counts_bytes = False
    move: Move | None = None

    def __init__(self, request: JoinRequest) -> None:
        self.layout = request.layout
        self.state = Center(request.method, request.method.center_slots(request.start), fused=False)
        self.events: list[tuple[str, str]] = []
        self.wait_seconds, self.bytes_sent, self.pace = 0.0, 0, 0.0
        self.update_sqnorm: float | None = None
        self.refusal = Refusal()  # a center of its own needs no guard

    @property
    def slowest(self) -> float:
        """Nobody else has a pace."""
        return self.pace

    @property
    def version(self) -> int:
        return self.state.version

    def updates(self, fragment: int) -> int:
        """How often a fragment of the center was updated."""
        return self.state.parts[fragment].version

    def join(self, incarnation: int) -> Tensor:
        """Start from the worker's own value."""
        return self.state.x.clone()

    def gather(self, seconds: float) -> int:
        """Nobody else is to come."""
        return 0

    def begin(self, elapsed: float) -> float:
        """Training begins now: nobody else has begun it."""
        return time.monotonic() - elapsed

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Keep nothing: the script has its model."""

    def leave(self) -> None:
        """Nobody waits for a worker alone."""

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        """Apply one message and answer it; None if it was refused."""
        return self.state.parts[fragment].exchange(message, scale)

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        """Apply one message that wants no answer; False if it was refused."""
        return self.state.parts[fragment].push(message, scale)

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        return self.exchange(message, scale, fragment)

    def same_gradient(self, digest: int) -> list[int]:
        """There is nobody to compare with."""
        return []

    def begin_average(self) -> None:
        """Begin the time average anew."""
        self.state.begin_average()

    def wait_turn(self, deadline: float) -> None:
        """It is always this worker's turn."""

    def pass_turn(self) -> None:
        """There is no next worker."""

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of the center's vectors."""
        return self.state.snapshot()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is evaluated, as named tensors."""
        return self.layout.split(self.state.measured)
