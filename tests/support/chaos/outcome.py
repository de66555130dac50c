"""What comes of a scenario, and who notes what went wrong in it; the same for both engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos.scheduler import Scheduler


class Witness:
    """Collects the promises that were broken, and counts what the center did."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self.faults: list[str] = []
        self.applied = 0

    def wrong(self, what: str) -> None:
        """Note that a promise was broken."""
        self.note(f"WRONG: {what}")
        self.faults.append(what)


@dataclass
class Outcome:
    """What came of a scenario."""

    scenario: Any
    faults: list[str]
    """Promises that were broken; empty if all is well."""
    trace: list[tuple[float, str, str]]
    signature: int
    """The same for the same schedule of threads, messages and faults."""
    switches: int
    seconds: float
    applied: int

    @staticmethod
    def of(scenario: Any, scheduler: Scheduler, witness: Witness) -> Outcome:
        return Outcome(
            scenario, witness.faults, scheduler.trace, scheduler.signature, scheduler.switches, scheduler.now,
            witness.applied,
        )  # fmt: skip


class PerProcess:
    """A variable of a module: each simulated process has its own, as real ones do."""

    def __init__(self, scheduler: Scheduler, name: str, make: Callable[[], Any]) -> None:
        self._scheduler, self._name, self._make = scheduler, name, make

    def _own(self) -> Any:
        data = self._scheduler.me.process.data
        if self._name not in data:
            data[self._name] = self._make()
        return data[self._name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __next__(self) -> Any:
        return next(self._own())

    def __contains__(self, value: object) -> bool:
        return value in self._own()

    def __setitem__(self, key: object, value: object) -> None:
        self._own()[key] = value
