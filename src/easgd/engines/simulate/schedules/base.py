"""What a schedule is, and what all of them do about faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from easgd.engines.simulate.strike import strike

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation


class Schedule(Protocol):
    """Decides who acts; one `tick` at a time."""

    def __init__(self, simulation: Simulation) -> None: ...

    def tick(self) -> bool:
        """Advance to the end of the next step or round; False if nobody is left to act."""

    def state_dict(self) -> dict[str, Any]:
        """What the schedule remembers between two ticks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


def settle_faults(sim: Simulation) -> bool:
    """Let everything happen that is due; if nobody lives, wait for a join. False if nobody will."""
    while (fault := sim.next_fault(sim.time)) is not None:
        strike(sim, fault)
    while not sim.living:
        if (fault := sim.next_fault(float("inf"))) is None:
            return False
        sim.time = max(sim.time, fault.time)
        strike(sim, fault)
    return True
