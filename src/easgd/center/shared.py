"""The center in shared memory: the workers of one machine exchange on it directly; no server is there to die.

The vector is cut into stripes with a kernel record lock each. A worker killed inside a stripe leaves every element
either before or after, and its lock open. A snapshot closes a gate behind which running exchanges end and new ones
wait, so that it sees whole exchanges only.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from easgd import checkpoint
from easgd.center.apply import prepared, warm
from easgd.center.control import CONTROL, LIVES, LIVING, LOCKS, RANKS, STRIPE_VERSIONS, STRIPES, VERSION, Control
from easgd.center.gate import Gate
from easgd.center.locks import RecordLocks
from easgd.center.memory import finite
from easgd.center.rounds import POLL, Rounds
from easgd.center.segment import Layout, Segment
from easgd.errors import NonFiniteError, SettingError, refuse
from easgd.kernels import fused
from easgd.methods import Method

LIFE_SECONDS = 60.0
_MINE: set[tuple[Path, int]] = set()  # (run, rank) attached in this process: record locks cannot tell


class SharedCenter:
    """One worker's door to the center of its run."""

    def __init__(
        self, folder: Path, method: Method, start: Tensor, layout: Layout, rank: int, launched: int,
        saved: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if rank >= RANKS:
            raise refuse("rank", rank, f"one machine has at most {RANKS} workers", "start fewer")
        self.folder, self.method, self.rank, self.launched = folder, method, rank, launched
        self.locks = RecordLocks.of(folder / LOCKS)
        with self.locks.threads, self.locks.hold(CONTROL):
            if not Control.exists(folder):
                Segment.create(folder, repr(method), layout, method.center_slots(start), saved)
            self.segment = Segment(folder)
        self.control, self.words = self.segment.control, self.segment.control.words
        self.segment.check(repr(method), layout)
        warm(method)
        self._claim(LIFE_SECONDS)
        self.gate = Gate(self.locks, self.words)
        self.rounds = Rounds(self.segment, self.locks, self.gate, method, rank)
        self.locked_seconds = 0.0
        self.squares = 0.0
        self.moved = 0  # nothing crosses a network
        self.news: list[tuple[str, str]] = []
        slots, count = self.segment.slots, self.segment.stripes
        stripes = [{name: slot[a:b] for name, slot in slots.items()} for a, b in self.segment.bounds]
        self._exchange = [prepared(method, stripe) for stripe in stripes]
        self._centers = [stripe["x"].numpy() for stripe in stripes]
        self._order = [(k + rank) % count for k in range(count)]
        self._cuts: list[list[tuple[int, int, int, int]]] | None = None

    # membership ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from."""
        # Read first, enter then: whoever sees this worker in the run may move the center at once (see `gather`).
        x = self.snapshot()["x"]
        self.control.enter(self.rank, incarnation)
        return x

    def _claim(self, seconds: float) -> None:
        """Take this rank's life lock, held for life: whoever finds it open knows that this worker is dead."""
        if (self.folder, self.rank) in _MINE:
            raise SettingError(f"worker {self.rank} is attached already in this process; close() it first")
        end = time.monotonic() + seconds
        while not self.locks.try_take(LIVES + self.rank):
            if time.monotonic() > end:
                raise SettingError(
                    f"worker {self.rank} still lives as another process after {seconds:g} s; end that one first"
                )
            time.sleep(10 * POLL)
        _MINE.add((self.folder, self.rank))

    def begin(self, elapsed: float) -> float:
        """The moment at which training began, on this machine's monotonic clock."""
        return self.control.begin(elapsed)

    def gather(self, seconds: float) -> int:
        """Wait until all launched workers have come, so that they start together; return how many are still missing.

        The first to come would otherwise train alone for as long as the others take to start.
        """
        end = time.monotonic() + seconds
        while (missing := self.control.absent(self.launched)) and time.monotonic() < end:
            time.sleep(10 * POLL)
        return len(missing)

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Leave the model's other tensors, and second names of tied ones, for whoever reads the final center."""
        path = self.folder / "rest.safetensors"
        with self.control.changing():
            if not path.exists():
                checkpoint.save(path, {"rest": rest, "aliases": aliases})

    def leave(self) -> None:
        """Leave politely: the others' moving rate follows."""
        self.control.leave(self.rank)
        self.locks.release(LIVES + self.rank)
        _MINE.discard((self.folder, self.rank))

    @property
    def living(self) -> int:
        """How many workers are in the run now."""
        return max(1, self.words[LIVING])

    @property
    def version(self) -> int:
        """The master's clock."""
        return self.words[VERSION]

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, message: Tensor | None, scale: float) -> Tensor | None:
        """Apply one message and answer it; the answer may take the message's memory. None: it was not finite."""
        if message is None:
            return self.snapshot()["x"]
        return self.apply(message, scale) if finite(message) else None

    def apply(self, message: Tensor, scale: float) -> Tensor:
        """`exchange` for a message that is known to be finite."""
        vector = message.to("cpu", torch.float32).contiguous()
        whole, bounds, exchange = vector.numpy(), self.segment.bounds, self._exchange

        def stripe(s: int) -> float:
            a, b = bounds[s]
            return exchange[s](whole[a:b], scale, self.words[STRIPE_VERSIONS + s])

        self._each(stripe)
        return message if vector is message else message.copy_(vector)

    def move(self, parts: list[tuple[Tensor, float]], scale: float) -> bool:
        """A whole elastic exchange in one pass, on x where it lies: d = α(x − x̃); x −= gain·d; x̃ += d.

        The parts are x's tensors, each with its gain. False: x was not finite, and from there on nothing has changed.
        What came before has been exchanged, both ends of it: a check ahead would be one more pass over memory.
        """
        rate, pieces = fused.f32(scale), [(part.numpy(), fused.f32(gain)) for part, gain in parts]
        if self._cuts is None:
            self._cuts = cut([len(piece) for piece, _ in pieces], self.segment.bounds)
        cuts, centers = self._cuts, self._centers

        def stripe(s: int) -> float:
            center, total = centers[s], 0.0
            for which, start, end, at in cuts[s]:
                piece, gain = pieces[which]
                total += fused.move_(piece[start:end], center[at : at + end - start], rate, gain)
                if total == math.inf:
                    raise NonFiniteError("it is not finite")
            return total

        try:
            self._each(stripe)
        except NonFiniteError:
            return False
        return True

    def push(self, message: Tensor, scale: float) -> bool:
        """Apply one message that wants no answer."""
        return self.exchange(message, scale) is not None

    def _each(self, work: Callable[[int], float]) -> None:
        """Do work on every stripe under its lock, inside the gate; it returns its part of Σd².

        Workers start at different stripes, so that they do not queue up. This is the hot path: no generators here.
        """
        locks, words, total = self.locks, self.words, 0.0
        with locks.threads:
            self.locked_seconds += self.gate.enter()
            try:
                for s in self._order:
                    self.locked_seconds += locks.take(STRIPES + s)
                    try:
                        total += work(s)
                        words[STRIPE_VERSIONS + s] += 1
                    finally:
                        locks.release(STRIPES + s)
            finally:
                self.gate.leave()
        self.squares = total

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all the center's vectors between two exchanges: none is half in it."""
        with self.gate.closed():
            return {name: slot.clone() for name, slot in self.segment.slots.items() if name != "sum"}

    def state_dict(self) -> dict[str, Tensor]:
        """What is evaluated, z where there is one, else x̃, as named tensors."""
        slots = self.snapshot()
        return self.segment.layout.split(slots.get("average", slots["x"]))

    # turns and rounds ------------------------------------------------------------------------------------------

    def wait_turn(self, deadline: float) -> None:
        """Round-robin: wait until it is this rank's turn."""
        self.rounds.wait_turn(deadline)

    def pass_turn(self) -> None:
        """Round-robin: the next worker may act."""
        self.rounds.pass_turn()

    def exchange_together(self, message: Tensor | None, scale: float, deadline: float) -> Tensor | None:
        """Equations 3 and 4: every d from the same x̃, one update with their sum."""
        slots, d = self.segment.slots, None
        if message is not None and finite(message):
            d = self.method.propose(slots, message, scale)
        self.locked_seconds += self.rounds.exchange(d, deadline)
        if message is not None and d is None:
            return None
        return d if self.method.answers_with == "difference" and d is not None else slots["x"].clone()


def cut(sizes: list[int], bounds: list[tuple[int, int]]) -> list[list[tuple[int, int, int, int]]]:
    """For every stripe, the stretches of the tensors in it: (tensor, from, to, place in the stripe)."""
    starts = [0, *itertools.accumulate(sizes)]
    out: list[list[tuple[int, int, int, int]]] = []
    for a, b in bounds:
        stretches = []
        for which, size in enumerate(sizes):
            first, last = max(a, starts[which]), min(b, starts[which] + size)
            if first < last:
                stretches.append((which, first - starts[which], last - starts[which], first - a))
        out.append(stretches)
    return out


def read_center(folder: str | os.PathLike[str]) -> dict[str, Tensor] | None:
    """Read the final center of a run whose workers have ended; None if none of them ever attached."""
    folder = Path(folder)
    if not Control.exists(folder):
        return None
    segment = Segment(folder)
    center = segment.layout.split(segment.slots.get("average", segment.slots["x"]))
    path = folder / "rest.safetensors"
    left = checkpoint.load(path) if path.exists() else {"rest": {}, "aliases": {}}
    tied = {alias: center[name].clone() for alias, name in left["aliases"].items()}
    return {**left["rest"], **tied, **center}
