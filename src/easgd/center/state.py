"""One stretch of the center: x̃, the method's vectors beside it, and the master's clock.

This is the only place where a message meets x̃. The center in memory is one such object over each fragment of the
vector (`easgd.center.whole`); a stripe of shared memory, and a fragment on a shard of a cluster, are each one over
their part. The center's side of every method is elementwise, so the parts need not know of each other. Whoever owns the
object makes its calls exclusive (one thread, or a lock).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from easgd.center.fused_rules import FusedExchange, fused_exchange
from easgd.center.guard import Guard, Refusal
from easgd.center.history import Journal, Sender
from easgd.kernels import fused as kernels
from easgd.methods import Method, Slots

VERSION, AVERAGED_FROM = 0, 1
Clock: TypeAlias = "list[int] | memoryview[int]"


class CenterState:
    """x̃ and what belongs to it. An exchange is atomic, and nothing non-finite enters.

    Args:
        method: whose rules are applied.
        slots: the vectors by name, "x" among them; they are changed in place.
        clock: two words, the number of updates so far and the one at which the average began; in shared memory these
            are the run's own. New ones if None.
        total: where a synchronous round is summed up; a vector of its own if None.
        fused: whether to take the fused loop where the method has one. The simulator takes the plain functions: they
            know every dtype, and published runs were computed with their bits.
        guard: what bounds the distance of messages whose sender is named; None where the owner sees to it.
    """

    def __init__(
        self, method: Method, slots: Slots, *, clock: Clock | None = None, total: Tensor | None = None,
        fused: bool = True, guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.method, self.slots, self.guard, self.fused = method, slots, guard, fused
        self.journal: Journal | None = None
        """Where every change is written down before it is made, if somebody asked for it."""
        self.refusal = Refusal()
        """Why the last refused message was refused."""
        self.update_sqnorm: float | None = None
        """Σd² of the last elastic answer; None after any other."""
        self._clock: Clock = [0, 0] if clock is None else clock
        self._total = total
        self._fused = fused_exchange(method, slots) if fused else None
        self._array = slots["x"].numpy() if self._fused is not None else None
        self._parts: list[tuple[slice, FusedExchange | None]] | None = None

    @property
    def x(self) -> Tensor:
        """The center variable x̃."""
        return self.slots["x"]

    @property
    def average(self) -> Tensor | None:
        """The time average z, where the method keeps one."""
        return self.slots.get("average")

    @property
    def version(self) -> int:
        """The master's clock: how many updates there have been."""
        return self._clock[VERSION]

    @property
    def clock(self) -> list[int]:
        """A copy of the clock: the updates so far, and the one at which the average began."""
        return list(self._clock)

    # one message at a time -------------------------------------------------------------------------------------

    def exchange(
        self, message: Tensor | None, scale: float, through: Callable[[Tensor], Tensor] | None = None,
        rank: int | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Apply one message and answer it; a message of None is a pull. None: refused, the center is unchanged.

        A method that is answered with x̃ gets it in its message's memory. `through` is what becomes of a change d on its
        way to the worker (rounding): the center takes the same. `rank` is the sender's, for the guard.
        """
        if message is None:
            return self.x.clone()
        return self.apply(message, scale, through) if self.accepts(message, scale, rank) else None

    def accepts(
        self, message: Tensor, scale: float, rank: int | None = None, distance: float | None = None
    ) -> bool:  # fmt: skip
        """Whether a message may meet this center: it is finite and, where there is a guard, not too far away.

        `distance` is the message's `distance`, where the caller has taken it already.
        """
        if self.guard is None or rank is None or not math.isfinite(scale):
            # A message whose distance is finite is finite itself, and need not be read again.
            known = distance is not None and math.isfinite(distance)
            refusal = None if math.isfinite(scale) and (known or finite(message)) else Refusal()
        else:
            distance = self.distance(message) if distance is None else distance
            refusal = self.guard.judge(rank, distance, lambda: norm(self.x))
        self.refusal = refusal or self.refusal
        return refusal is None

    def distance(self, message: Tensor) -> float:
        """How far a message would move the center, but for the rate: ‖x − x̃‖ of a position, the norm of a change."""
        if self.method.is_elastic and self._array is None:
            return float(torch.dist(message, self.x))
        return math.sqrt(self.square(message))

    def square(self, part: Tensor, at: int = 0) -> float:
        """The square of the `distance` of a part that begins at element `at`, where the method has a fused loop."""
        if not self.method.is_elastic:
            return float(torch.dot(part, part))
        assert self._array is not None
        return kernels.apart(part.numpy(), self._array[at : at + part.numel()])

    def apply(self, message: Tensor, scale: float, through: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """`exchange` for a message that is known to be finite."""
        if self._fused is not None and through is None:
            self.apply_array_(message.numpy(), scale)
            return message
        if self.journal is not None:
            self.journal.note(self, "apply", message, scale, through is not None)
        d = self.method.propose(self.slots, message, scale)
        d = d if through is None else through(d)
        self._update(d)
        if not self.method.is_elastic:
            self.update_sqnorm = None
            return message.copy_(self.x)
        self.update_sqnorm = float(torch.dot(d, d))
        return d

    def apply_array_(self, message: kernels.Vector, scale: float) -> float | None:
        """`apply` on a float32 array, which the answer overwrites; returns Σd². The hot path of shared memory."""
        if self._fused is None:
            vector = torch.from_numpy(message)
            vector.copy_(self.apply(vector, scale))
        else:
            if self.journal is not None:
                self.journal.note(self, "apply", torch.from_numpy(message), scale)
            self.update_sqnorm = self._fused(message, scale, self._clock[VERSION] - self._clock[AVERAGED_FROM])
            self._clock[VERSION] += 1
        return self.update_sqnorm

    @property
    def applies_in_parts(self) -> bool:
        """Whether `apply_parts_` can be called: this method has a fused loop."""
        return self._fused is not None

    def apply_parts_(self, message: kernels.Vector, scale: float, part: int, done: Callable[[int], None]) -> None:
        """`apply_array_`, `part` elements at a time from the front; `done` is told up to which the answer is there.

        The first call decides what the parts are.
        """
        if self._parts is None:
            ends = [*range(part, message.size, part), message.size]
            cuts = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
            stretches = [{name: slot[cut] for name, slot in self.slots.items()} for cut in cuts]
            self._parts = [
                (cut, fused_exchange(self.method, slots)) for cut, slots in zip(cuts, stretches, strict=True)
            ]
        if self.journal is not None:
            self.journal.note(self, "apply", torch.from_numpy(message), scale)
        version, squares = self._clock[VERSION] - self._clock[AVERAGED_FROM], []
        for cut, loop in self._parts:
            assert loop is not None
            squares.append(loop(message[cut], scale, version))
            done(cut.stop)
        self.update_sqnorm = None if squares[0] is None else sum(q or 0.0 for q in squares)
        self._clock[VERSION] += 1

    def move_(self, x: kernels.Vector, at: int, scale: float, gain: float) -> float:
        """Both ends of the spring in one pass: x is the part of a worker's variable that begins at element `at` here.

        Returns Σd², infinite if that is not finite (see `kernels.fused.move_`). A stripe may be moved in several parts:
        the caller ends them with `tick`, and notes the whole in the journal before the first.
        """
        assert self._array is not None
        return kernels.move_(x, self._array[at : at + x.size], kernels.f32(scale), kernels.f32(gain))

    def tick(self) -> None:
        """Count one update that was made by `move_`."""
        self._clock[VERSION] += 1

    def push(self, message: Tensor, scale: float, rank: int | None = None) -> bool:
        """Apply one message that wants no answer; False if it was refused."""
        if not self.accepts(message, scale, rank):
            return False
        if self.journal is not None:
            self.journal.note(self, "apply", message, scale)
        self._update(self.method.propose(self.slots, message, scale))
        return True

    def _update(self, d: Tensor) -> None:
        self.method.update_(self.slots, d, self._clock[VERSION] - self._clock[AVERAGED_FROM])
        self._clock[VERSION] += 1

    # all at once (equations 3 and 4) ---------------------------------------------------------------------------

    def propose(self, message: Tensor | None, scale: float, rank: int | None = None) -> Tensor | None:
        """Return the change that a message asks for in a synchronous round; None if it has none or was refused."""
        if message is None or not self.accepts(message, scale, rank):
            return None
        return self.method.propose(self.slots, message, scale)

    def absorb_round(self, differences: Iterable[Tensor]) -> None:
        """End a round in one update. Differences come in the order of the ranks, see `add_to_round`."""
        for d in differences:
            self.add_to_round(d)
        self.end_round()

    def add_to_round(self, d: Tensor, scale: float = 1.0) -> None:
        """Add one worker's change, made with this scale, to the round's sum.

        Call it in the order of the ranks: a floating-point sum depends on it, and two runs must not differ.
        """
        if self._total is None:
            self._total = torch.zeros_like(self.x)
        if self.journal is not None:
            self.journal.note(self, "add", d, scale)
        self._total += d

    def end_round(self) -> None:
        """Update the center with the round's sum. The sum is given up first: whoever is killed here applies it once."""
        assert self._total is not None
        d = self._total.clone()
        if self.journal is not None:
            self.journal.note(self, "round", d)
        self._total.zero_()
        self._update(d)

    def round_answer(self, d: Tensor | None) -> Tensor:
        """What a worker is answered at the end of a round to which it brought `d`."""
        return d if d is not None and self.method.is_elastic else self.x.clone()

    def exchange_all(
        self, messages: Sequence[Tensor | None], scales: Sequence[float], ranks: Sequence[int | None] | None = None,
        senders: Sequence[Sender] | None = None,
    ) -> list[Tensor | None]:  # fmt: skip
        """Answer all messages, given in the order of the ranks, from the same x̃; None for one that was refused.

        `senders` are for the journal, where there is one.
        """
        whose = [None] * len(messages) if ranks is None else ranks
        proposed = [self.propose(*each) for each in zip(messages, scales, whose, strict=True)]
        for k, d in enumerate(proposed):
            if self.journal is not None and senders is not None:
                self.journal.history.sender = senders[k]
            if d is not None:
                self.add_to_round(d, scales[k])
        if any(d is not None for d in proposed):
            self.end_round()
        pairs = zip(messages, proposed, strict=True)
        return [None if m is not None and d is None else self.round_answer(d) for m, d in pairs]

    # averaging and saving --------------------------------------------------------------------------------------

    def begin_average(self) -> None:
        """Forget the time average so far: it begins here and now."""
        if self.average is not None:
            if self.journal is not None:
                self.journal.note(self, "average")
            self.average.copy_(self.x)
            self._clock[AVERAGED_FROM] = self._clock[VERSION]

    def set_clock(self, clock: Sequence[int]) -> None:
        """Take back a saved clock."""
        self._clock[VERSION], self._clock[AVERAGED_FROM] = clock


def accepts(message: Tensor, scale: float) -> bool:
    """Whether a message may meet the center: it and the exchange's scalar are finite."""
    return math.isfinite(scale) and finite(message)


def norm(vector: Tensor) -> float:
    return math.sqrt(torch.dot(vector, vector).item())


def finite(message: Tensor) -> bool:
    """Whether every element is finite, and small enough that no number of updates can overflow the center.

    Σm² settles both in one pass: it overflows for elements beyond 1e19 (1e154 in float64), far outside any training.
    """
    return math.isfinite(torch.dot(message, message).item())
