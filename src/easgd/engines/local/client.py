"""The center in shared memory: the workers of one machine exchange on it directly; no server is there to die.

The vector is cut into the method's fragments and these into stripes with a kernel record lock each; a stripe is a
`CenterState` over the mapped memory, and an exchange goes over the stripes of its fragment. A worker killed inside a
stripe leaves every element either before or after, and its lock open. A snapshot closes a lock behind which running
exchanges end and new ones wait, so that it sees whole exchanges only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from easgd import checkpoint
from easgd.center.client import JoinRequest, Move
from easgd.center.fused_rules import moves_in_place, warm
from easgd.center.guard import Guard, Refusal
from easgd.center.layout import assembled
from easgd.center.state import CenterState, norm
from easgd.engines.local import recording
from easgd.engines.local.control import (
    CENTERS,
    CONTROL,
    LIVES,
    LIVING,
    LOCKS,
    PACES,
    RANKS,
    STRIPES,
    TABLES,
    Control,
    ended,
)  # fmt: skip
from easgd.engines.local.reader import folder_of, read  # noqa: F401 (the table of transports finds `read` here)
from easgd.engines.local.rounds import POLL, Rounds
from easgd.engines.local.segment import Segment
from easgd.engines.local.snapshot_lock import SnapshotLock
from easgd.errors import SettingError, refuse
from easgd.kernels import fused
from easgd.locks import RecordLocks
from easgd.methods import Method
from easgd.runtime import time
from easgd.signals import hold, let_go

LIFE_SECONDS = 60.0
REST = "rest.safetensors"
_MINE: set[tuple[Path, int]] = set()  # (run, rank) attached in this process: record locks cannot tell


def connect(address: str, request: JoinRequest) -> SharedMemoryClient:
    """Open the center of the run in folder `address`, or lay it out if this worker is the first."""
    folder = folder_of(Path(address), request.center)
    folder.mkdir(parents=True, exist_ok=True)
    return SharedMemoryClient(folder, request)


class SharedMemoryClient:
    """One worker's access to the center of its run; a `CenterClient`."""

    hides_rounds = False
    counts_bytes = False

    def __init__(self, folder: Path, request: JoinRequest) -> None:
        method, rank = request.method, request.rank
        if rank >= RANKS:
            raise refuse("rank", rank, f"one machine has at most {RANKS} workers", "start fewer")
        self.folder, self.method, self.rank, self.launched = folder, method, rank, request.launched
        self.locks = RecordLocks.of(folder / LOCKS)
        with self.locks.threads, self.locks.hold(CONTROL):
            if not Control.exists(folder):
                slots = method.center_slots(request.start)
                history = None if request.history is None else recording.folder_for(request.history, request.center)
                Segment.create(folder, method, request.layout, slots, request.saved, history)
            self.segment = Segment(folder)
            recording.begin(self.segment, method)
        self.control, self.words = self.segment.control, self.segment.control.words
        self.segment.check(repr(method), request.layout)
        warm(method)
        self._claim(LIFE_SECONDS)
        self.snapshot_lock = SnapshotLock(self.locks, self.words)
        self.states: list[CenterState] = self.segment.states(method)
        self.rounds = Rounds(self.segment, self.states, self.locks, self.snapshot_lock, rank)
        self.wait_seconds = 0.0
        self.update_sqnorm: float | None = None
        factor, p = 0.0 if method.sequential else request.guard, method.fragments
        self.guards = [Guard(factor, self.control.distances[f * TABLES // max(p, TABLES)]) for f in range(p)]
        self.refusal = Refusal()
        self.bytes_sent = 0  # nothing crosses a network
        self.move: Move | None = self._move if moves_in_place(method) else None
        self.events: list[tuple[str, str]] = []
        self._order = [[s[(k + rank) % len(s)] for k in range(len(s))] for s in self.segment.stripes]
        self._cuts: dict[int, dict[int, list[tuple[int, int, int, int]]]] = {}
        # Each stripe's clock when this worker saw it last, for a method that weighs messages by their staleness.
        self._seen = [0] * len(self.states)
        self.recording: recording.Recording | None = None
        if "history" in self.segment.header:
            self.recording = recording.Recording(self.segment, self.states, rank, request.incarnation)
        self._weight = None if type(method).weight is Method.weight else method.weight

    @property
    def pace(self) -> float:
        """What this worker brings to a run whose period sets itself."""
        return self.words[PACES + self.rank] / 1e9

    @pace.setter
    def pace(self, value: float) -> None:
        self.words[PACES + self.rank] = round(1e9 * value)

    @property
    def slowest(self) -> float:
        """The largest pace: of the last round, or of all workers now."""
        return (self.rounds.agreed or max(self.words[PACES + rank] for rank in self.control.joined())) / 1e9

    # membership ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from."""
        # Read first, enter then: whoever sees this worker in the run may move the center at once (see `gather`).
        x = self.snapshot()["x"]
        self._seen = [state.version for state in self.states]
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
        """Return when training began, on this machine's monotonic clock."""
        return self.control.begin(elapsed)

    def gather(self, seconds: float) -> int:
        """Wait until all launched workers have come, so that they start together; return how many are still missing.

        The first to come would otherwise train alone for as long as the others take to start.
        """
        end = time.monotonic() + seconds
        # Who died before a further center was there is known at the run's others.
        dead = ended(self.folder.parent.parent) if self.folder.parent.name == CENTERS else set()
        while (missing := set(self.control.absent(self.launched)) - dead) and time.monotonic() < end:
            time.sleep(10 * POLL)
        return len(missing)

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Keep the model's other tensors, and second names of tied ones, for whoever reads the final center."""
        path = self.folder / REST
        with self.control.changing():
            if not path.exists():
                try:
                    checkpoint.save(path, {"rest": rest, "aliases": aliases})
                except OSError:
                    if self.folder.exists():  # else the run that this worker had joined is over, and its folder gone
                        raise

    def leave(self) -> None:
        """Leave the run: the others' moving rate follows."""
        self.control.leave(self.rank)
        self.locks.release(LIVES + self.rank)
        _MINE.discard((self.folder, self.rank))

    @property
    def living(self) -> int:
        """How many workers are in the run now."""
        return max(1, self.words[LIVING])

    @property
    def version(self) -> int:
        """The master's clock: the updates of all fragments together."""
        return self.segment.version

    def updates(self, fragment: int) -> int:
        """How often a fragment was updated."""
        return self.segment.clock(fragment)[0]

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        """Apply one message and answer it; the answer may take the message's memory. None: it was refused."""
        if message is None:
            return self._copy("x", fragment)
        # The whole message is looked at before the first stripe is touched: it is applied to all of them or to none.
        return self.apply(message, scale, fragment) if self._accepts([message], scale, fragment) else None

    def _accepts(self, parts: list[Tensor], scale: float, fragment: int) -> bool:
        """Whether an exchange may begin: the fragment in these parts is finite, and not too far from the center."""
        refusal: Refusal | None = Refusal()
        if math.isfinite(scale):
            (start, stop), total = self.segment.fragments[fragment], 0.0
            center, at = self.segment.slots["x"][start:stop], 0
            whole, position = center.numpy(), self.method.is_elastic
            for part in parts:
                # Without locks: what others do meanwhile is far below what is refused.
                x = part.detach().to("cpu", torch.float32).reshape(-1)
                total += fused.apart(x.numpy(), whole[at : at + x.numel()]) if position else float(torch.dot(x, x))
                at += x.numel()
            refusal = self.guards[fragment].judge(self.rank, math.sqrt(total), lambda: norm(center))
        self.refusal = refusal or self.refusal
        return refusal is None

    def apply(self, message: Tensor, scale: float, fragment: int = 0) -> Tensor:
        """`exchange` for a message that is known to be finite."""
        vector = message.to("cpu", torch.float32).contiguous()
        whole, bounds, states, seen, weight = vector.numpy(), self.segment.bounds, self.states, self._seen, self._weight
        start = self.segment.fragments[fragment][0]

        def stripe(s: int) -> float | None:
            a, b = bounds[s][0] - start, bounds[s][1] - start
            if weight is None:
                return states[s].apply_array_(whole[a:b], scale)
            part = states[s].apply_array_(whole[a:b], scale * weight(states[s].version - seen[s]))
            seen[s] = states[s].version
            return part

        self._each(stripe, fragment)
        if self.recording is not None and self.method.is_elastic:
            self.recording.history.answer(vector, start)
        return message if vector is message else message.copy_(vector)

    def _move(self, parts: list[tuple[Tensor, float]], scale: float, fragment: int) -> bool:
        """A whole elastic exchange in one pass, on x where it lies: d = α(x − x̃); x −= gain·d; x̃ += d.

        The parts are the fragment's tensors, each with its gain. False: it was refused, and nothing has changed: the
        check reads x and x̃ once more, a third of the time that the move takes.
        """
        if not self._accepts([part for part, _ in parts], scale, fragment):
            return False
        pieces = [(part.numpy(), gain) for part, gain in parts]
        if fragment not in self._cuts:
            stripes, start = self.segment.stripes[fragment], self.segment.fragments[fragment][0]
            bounds = [(a - start, b - start) for a, b in (self.segment.bounds[s] for s in stripes)]
            self._cuts[fragment] = dict(zip(stripes, cut([len(piece) for piece, _ in pieces], bounds), strict=True))
        cuts, states = self._cuts[fragment], self.states

        def stripe(s: int) -> float:
            state, total = states[s], 0.0
            if state.journal is not None:
                x = torch.cat([torch.from_numpy(pieces[which][0][start:end]) for which, start, end, _ in cuts[s]])
                state.journal.note(state, "apply", x, scale)
            for which, start, end, at in cuts[s]:
                piece, gain = pieces[which]
                total += state.move_(piece[start:end], at, scale, gain)
            state.tick()
            return total

        self._each(stripe, fragment)
        return True

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        """Apply one message that wants no answer."""
        return self.exchange(message, scale, fragment) is not None

    def _each(self, work: Callable[[int], float | None], fragment: int) -> None:
        """Do work on every stripe of a fragment under its lock, beside no snapshot; it returns its part of Σd².

        Workers start at different stripes, so that they do not queue up. This is the hot path: no generators here.
        """
        locks, total = self.locks, 0.0
        part: float | None = 0.0
        with locks.threads:
            self.wait_seconds += self.snapshot_lock.enter()
            if self.recording is not None:
                self.recording.begin()
            try:
                for s in self._order[fragment]:
                    self.wait_seconds += locks.take(STRIPES + s)
                    # A signal may end the wait for a lock, not a stripe between its entry, its vectors and its clock.
                    hold()
                    try:
                        part = work(s)
                    finally:
                        locks.release(STRIPES + s)
                        let_go()
                    total += part or 0.0
            finally:
                self.snapshot_lock.leave()
        self.update_sqnorm = None if part is None else total

    def same_gradient(self, digest: int) -> list[int]:
        """Report a digest of this worker's first gradient; return the ranks that reported the same before."""
        return self.control.same_gradient(self.rank, digest)

    def begin_average(self) -> None:
        """Begin the time average anew, on all stripes between two exchanges."""
        with self.snapshot_lock.closed():
            for state in self.states:
                state.begin_average()

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of all the center's vectors between two exchanges: none is half in it."""
        with self.snapshot_lock.closed():
            return {name: slot.clone() for name, slot in self.segment.slots.items()}

    def _copy(self, slot: str, fragment: int) -> Tensor:
        """Return a copy of a fragment of one vector between two exchanges."""
        a, b = self.segment.fragments[fragment]
        with self.snapshot_lock.closed():
            return self.segment.slots[slot][a:b].clone()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is evaluated, z where there is one, else x̃, as named tensors."""
        slots = self.snapshot()
        return self.segment.layout.split(slots.get("average", slots["x"]))

    # turns and rounds ------------------------------------------------------------------------------------------

    def wait_turn(self, deadline: float) -> None:
        """Round-robin: wait until it is this rank's turn."""
        self.rounds.wait_turn(deadline)

    def pass_turn(self) -> None:
        """Round-robin: let the next worker act."""
        self.rounds.pass_turn()

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        """Equations 3 and 4: every d from the same x̃, one update with their sum."""
        vector = None if message is None else message.to("cpu", torch.float32).contiguous()
        refused = vector is not None and not self._accepts([vector], scale, fragment)
        d = self.rounds.propose(None if refused else vector, scale, fragment)
        if self.recording is not None:
            self.recording.begin()
        self.wait_seconds += self.rounds.exchange(d, deadline, fragment, scale)
        if self.recording is not None and d is not None and self.method.is_elastic:
            self.recording.history.answer(d, self.segment.fragments[fragment][0])
        elastic = self.method.is_elastic
        self.update_sqnorm = float(torch.dot(d, d)) if elastic and d is not None else None
        return None if refused else self.rounds.answer(d, fragment)


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


def read_center(*folders: Path) -> dict[str, Tensor]:
    """Read a final center of a run whose workers have ended; the parts of a sharded one are in several folders."""
    parts, rest, aliases = [], {}, {}
    for folder in folders:
        segment = Segment(folder)
        parts.append((segment.layout, segment.layout.split(segment.slots.get("average", segment.slots["x"]))))
        if (folder / REST).exists():
            left = checkpoint.load(folder / REST)
            rest, aliases = left["rest"], left["aliases"]
    center = assembled(parts)
    return {**rest, **{alias: center[name].clone() for alias, name in aliases.items()}, **center}
