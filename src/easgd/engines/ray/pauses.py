"""Workers that have fallen silent: the coordinator has had no heartbeat of them for some seconds."""

from __future__ import annotations

from typing import Any

from easgd.launch.backend import Change
from easgd.launch.output import say


class Pauses:
    """Makes events of what the coordinator says of silent processes."""

    def __init__(self) -> None:
        self._silent: set[tuple[int, int, str]] = set()

    def changes(self, copy: dict[str, Any]) -> list[Change]:
        """Return who has fallen silent and who is heard again, in a copy of the coordinator's state."""
        silent, found = set(copy["silent"]), list[Change]()
        for rank, incarnation, process in sorted(silent ^ self._silent):
            if (rank, incarnation, process) in silent:
                found.append(Change("paused", rank, incarnation, _way_on(process)))
                say(f"worker {rank} is paused: {found[-1].detail}")
            elif copy["held"].get(rank) == incarnation:  # else it has ended
                found.append(Change("resumed", rank, incarnation, ""))
        self._silent = silent
        return found


def _way_on(process: str) -> str:
    pid, _, node = process.partition(" on ")
    why = f"nothing is heard of it: a signal stopped it, or its link is cut; on {node}"
    return f"{why}, kill -CONT {pid} lets it go on, kill -KILL {pid} ends it"
