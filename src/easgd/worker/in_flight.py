"""One exchange of a worker, from its message to the use of its answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(slots=True, eq=False)
class InFlight:
    """An exchange in flight. The thread that carries it fills in what comes back.

    Attributes:
        fragment: the part of the vector that it is of.
        asked: the clock of the step that began with it.
        due: the clock of the step after which its answer is used.
        future: the thread's work, until it has been waited for.
        answer: what the center answered; None where x was moved in place, or nothing is to be done.
        refused: whether the center refused the message.
        waited: seconds that others were in the way.
        seconds: what it took beside these.
        work: processor seconds of the thread that carried it.
        staleness: and `distance`, `bytes`: what is recorded of it, in the step that uses its answer.
    """

    fragment: int
    asked: int
    due: int
    future: Future[None] | None = None
    answer: Tensor | None = None
    refused: bool = False
    waited: float = 0.0
    seconds: float = 0.0
    work: float = 0.0
    staleness: int | None = None
    distance: float | None = None
    bytes: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what decides the future of an exchange that has been waited for."""
        answer = None if self.answer is None else self.answer.clone()
        return {**{name: getattr(self, name) for name in SAVED}, "answer": answer}

    @staticmethod
    def from_state(state: dict[str, Any]) -> InFlight:
        """Take back what `state_dict` gave."""
        answer = None if state["answer"] is None else state["answer"].clone()
        return InFlight(**{name: state[name] for name in SAVED}, answer=answer)


SAVED = ("fragment", "asked", "due", "seconds", "staleness", "distance", "bytes")
