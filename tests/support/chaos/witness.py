"""What the simulation itself knows of a run, beside what the engine's objects believe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chaos.outcome import Witness
from easgd.engines.ray.ledger import Reached
from easgd.engines.ray.messages import Kind, Request
from easgd.engines.ray.shard import Shard

Key = tuple[int, int, int, int]
"""(rank, incarnation, fragment, sequence)"""


class ClusterWitness(Witness):
    """Collects what went wrong, and what the shards did."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(note)
        self.refused = self.restored = self.snapshots = self.torn = 0

    def snapshot(self, states: Sequence[dict[str, Any]], faithful: set[int]) -> None:
        """Check that an exchange is in all shards of a snapshot or in none, of workers that were never killed."""
        self.snapshots += 1
        if not all(state["whole"] for state in states):
            self.torn += 1
            return
        reached: dict[tuple[int, int], set[int]] = {}
        for state in states:
            for (rank, fragment), (_, sequence) in state["ledger"].items():
                start, stop = state["cuts"][fragment]
                # A shard that went back to a checkpoint is behind until the worker's next exchange.
                if rank in faithful and stop > start and not state["epoch"]:
                    reached.setdefault((rank, fragment), set()).add(sequence)
        for (rank, fragment), sequences in reached.items():
            if len(sequences) > 1:
                self.wrong(f"a snapshot has exchanges {sorted(sequences)} of worker {rank}, fragment {fragment}")


class WitnessedShard(Shard):
    """A shard that remembers every exchange it has applied. The memory is part of its saved state."""

    witness: ClusterWitness

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.witnessed: dict[Key, None] = {}
        self.changes: dict[tuple[int, int], Tensor] = {}  # (rank, incarnation) -> Σd, where the method answers d
        self.start = self.center.x.clone()

    def enroll(self, serial: int, members: list[int], dead: dict[int, int]) -> None:
        before = self.serial
        super().enroll(serial, members, dead)
        late = "" if self.serial == serial else f", late: it knows {self.serial}"
        self.witness.note(f"hears announcement {serial}: members {members}, dead {dead}{late}")
        if self.serial < before:
            self.witness.wrong(f"announcement {serial} took the place of {before}")

    def _apply(self, request: Request, entry: Any, message: Tensor | None, pipelined: Any) -> None:
        part = self.center.parts[request.fragment]
        before, version = part.x.clone(), part.version
        super()._apply(request, entry, message, pipelined)
        if part.version > version:
            key = (request.rank, request.incarnation, request.fragment, request.sequence)
            self._remember(key, (part.x - before) if request.kind == Kind.EXCHANGE else None)
            if part.version != version + 1:
                self.witness.wrong(f"one exchange took the clock from {version} to {part.version}")
        elif part.version < version:
            self.witness.wrong(f"the clock went back from {version} to {part.version}")
        else:
            self.witness.refused += request.kind in (Kind.EXCHANGE, Kind.PUSH)
        self._sound()

    def _end_round(self) -> None:
        arrived = dict(self._round.arrivals)
        super()._end_round()
        if arrived and not self._round.arrivals:
            for rank, (fragment, sequence, d, _) in arrived.items():
                if d is not None:
                    self._remember((rank, self.ledger.incarnations[rank], fragment, sequence), None)
            self._sound()

    def _remember(self, key: Key, change: Tensor | None) -> None:
        self.witness.applied += 1
        self.witness.note(f"applies exchange {key[3]} of worker {key[0]}-{key[1]}, fragment {key[2]}")
        if key in self.witnessed:
            self.witness.wrong(f"exchange {key} (rank, incarnation, fragment, sequence) was applied twice")
        self.witnessed[key] = None
        if change is not None:
            total = self.changes.setdefault(key[:2], torch.zeros(self.size, dtype=torch.float64))
            a, b = self.center.bounds[key[2]]
            total[a:b] += change

    def _sound(self) -> None:
        if not bool(self.center.x.isfinite().all()):
            self.witness.wrong("the center is not finite")

    def hold(self, ticket: str = "") -> Reached:
        reached = super().hold(ticket)
        self.witness.note(f"holds exchanges up at {_short(reached)}")
        return reached

    def take(self, target: Reached | None = None, seconds: float = 5.0, ticket: str = "") -> dict[str, Any]:
        state = super().take(target, seconds, ticket)
        wanted = "" if target is None else f", wanted {_short(target)}"
        self.witness.note(f"is copied at {_short(state['ledger'])}{wanted}, {'whole' if state['whole'] else 'torn'}")
        return state

    def state(self) -> dict[str, Any]:
        with self._changed:
            return {**super().state(), "witnessed": list(self.witnessed)}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.witnessed = dict.fromkeys(map(tuple, state["witnessed"]))
        self.witness.restored += 1
        self.witness.note(f"goes on from version {state['version']} as epoch {self.epoch}")


def _short(reached: Reached) -> str:
    return (
        " ".join(f"{rank}-{incarnation}:{seq}" for (rank, _), (incarnation, seq) in sorted(reached.items()))
        or "nothing"
    )
