"""What a worker needs of its center, wherever that lives: in shared memory, or in the processes of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from easgd.center.guard import Refusal
from easgd.center.layout import Layout
from easgd.methods import Method

Move = Callable[[list[tuple[Tensor, float]], float, int], bool]


@dataclass(frozen=True)
class JoinRequest:
    """What a worker brings when it connects to the center of its run.

    Attributes:
        method: the method that it trains with; all workers of a run must agree.
        start: its parameters as one vector; the first worker's become the center.
        layout: what that vector is made of.
        rank: its number in the run, from 0.
        incarnation: how often this rank has been started before.
        launched: how many workers were launched.
        center: which of the run's centers.
        compression: of what crosses a network; None sends float32.
        saved: a center to go on from, {"slots": …, "version": …, "clocks": …}, instead of `start`.
        deadline: seconds to wait for a rank of a process group.
        process_group: of torch.distributed, where the center is replicated in one; None for all ranks.
        guard: how many times the usual distance from the center a message may have; 0 for any.
        history: the folder where the first worker has the run's exchanges written down; None for nowhere.
        machine_period: T of a center in every machine's memory (`easgd.center.levels`); None where there is none.
    """

    method: Method
    start: Tensor
    layout: Layout
    rank: int
    incarnation: int = 0
    launched: int = 1
    center: str = "center"
    compression: str | None = None
    saved: dict[str, Any] | None = None
    deadline: float = 600.0
    process_group: Any = None
    guard: float = 0.0
    history: Path | None = None
    machine_period: int | None = None


class CenterClient(Protocol):
    """One worker's access to the center of its run; each engine has its own.

    Attributes:
        wait_seconds: time lost to other workers since it was last set to zero.
        update_sqnorm: Σd² of the last elastic answer; None after any other.
        bytes_sent: bytes that went over a network since it was last set to zero; 0 where there is none.
        counts_bytes: whether `bytes_sent` is what its exchanges moved; where they stay in memory, each is recorded with
            the bytes of its message and answer.
        pace: what this worker brings to a run whose period sets itself: the seconds between its exchanges, or in
            synchronous rounds the period that it proposes; 0 where there is none.
        slowest: the largest pace of all workers, as far as this one knows; in rounds, of all that met in the last.
        move: exchanges x where it lies, in one pass, from a fragment's tensors with their gains, the scale and the
            fragment; False if it was refused. None where a message and its answer are the only way.
        hides_rounds: whether a synchronous round may run behind the gradient. An all-reduce may; where workers wait for
            each other at a center, the step that waits must show it.
    """

    wait_seconds: float
    update_sqnorm: float | None
    bytes_sent: int
    counts_bytes: bool
    pace: float
    move: Move | None
    hides_rounds: bool

    @property
    def refusal(self) -> Refusal:
        """Why the last message that was refused was."""

    @property
    def events(self) -> list[tuple[str, str]]:
        """What is worth a record, as (event, detail); the worker takes them out."""

    @property
    def living(self) -> int:
        """How many workers are in the run now."""

    @property
    def slowest(self) -> float: ...

    @property
    def version(self) -> int:
        """The master's clock, as far as this worker knows it: the updates of all fragments together."""

    def updates(self, fragment: int) -> int:
        """How often a fragment of the center was updated, as far as this worker knows."""

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from."""

    def gather(self, seconds: float) -> int:
        """Wait until all launched workers have come; return how many are still missing."""

    def begin(self, elapsed: float) -> float:
        """Return when training began, on this machine's monotonic clock; a resumed run has `elapsed` seconds behind."""

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Keep the model's other tensors, and second names of tied ones, for whoever reads the final center."""

    def leave(self) -> None:
        """Leave the run, so that the others need not wait and α follows."""

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        """Apply one fragment's message; return the answer, which may use the message's memory, None if refused."""

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        """Apply one message that wants no answer; False if it was refused."""

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        """Take part in one synchronous round; None if the message was refused."""

    def same_gradient(self, digest: int) -> list[int]:
        """Report a digest of this worker's first gradient; return the ranks that reported the same before."""

    def begin_average(self) -> None:
        """Begin the time average z anew at the present center."""

    def wait_turn(self, deadline: float) -> None:
        """Round-robin: wait until it is this rank's turn."""

    def pass_turn(self) -> None:
        """Round-robin: let the next worker act."""

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of all the center's vectors between two exchanges."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is evaluated, z where there is one, else x̃, as named tensors."""
