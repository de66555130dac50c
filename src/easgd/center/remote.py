"""A worker's door to a center that lives in other processes, cut into shards: one round trip per exchange.

When a shard does not answer for a while the exchange is left open, training goes on, and the next exchange takes it up
first.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from safetensors.torch import save as pack_tensors
from torch import Tensor

from easgd.center.delivery import Parcel, Wire
from easgd.center.memory import finite
from easgd.center.messages import Kind, Reply, Status
from easgd.center.segment import Layout, refuse_misfit
from easgd.compress import Codec, Feedback, Float32, Following
from easgd.errors import UnreachableError
from easgd.methods import Method

RETRY_SECONDS = 6.0


class RemoteCenter:
    """One worker's door. `connect` makes it: it knows how this run's shards are reached."""

    def __init__(
        self, run: Any, wire: Wire, method: Method, layout: Layout, codec: Codec, rank: int, launched: int
    ) -> None:  # fmt: skip
        self.run, self.wire, self.method, self.layout, self.codec = run, wire, method, layout, codec
        self.rank, self.launched = rank, launched
        self.locked_seconds = self.squares = 0.0
        n = layout.size
        self._plain = isinstance(codec, Float32)
        # Two, in turn: a method may keep the last answer until the next has come whole.
        self._answers = [torch.empty(n), torch.empty(n)]
        self._staging = None if self._plain else torch.empty(n, dtype=torch.float32).view(torch.uint8)
        self._feedback = [] if self._plain else [Feedback(codec, b - a) for a, b in wire.bounds]
        self._following: list[Following | None] = [None] * len(wire.bounds)
        self._sequence = -1
        self._unanswered: Parcel | None = None

    @property
    def living(self) -> int:
        """How many workers were in the run at the last answer."""
        return self.wire.living

    @property
    def version(self) -> int:
        """The first shard's clock at the last answer."""
        return self.wire.version

    @property
    def moved(self) -> int:
        """Bytes of messages and answers since it was set to zero."""
        return self.wire.moved

    @moved.setter
    def moved(self, value: int) -> None:
        self.wire.moved = value

    @property
    def news(self) -> list[tuple[str, str]]:
        """Roll-backs, to be written down."""
        return self.wire.news

    # membership ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from."""
        x = self.snapshot()["x"]
        self.wire.living = self.run.join()
        return x

    def gather(self, seconds: float) -> int:
        """Wait until all launched workers have come."""
        missing: int = self.run.gather(self.launched, seconds)
        return missing

    def begin(self, elapsed: float) -> float:
        """The moment at which training began. Machines share the time of day, as well as it is kept, and no other."""
        began: float = self.run.begin(elapsed)
        return time.monotonic() - (time.time() - began)

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Leave the rest of the model at the run's desk."""
        tensors = {name: value.contiguous() for name, value in rest.items()}
        self.run.leave_behind(pack_tensors(tensors) if tensors else b"", aliases)

    def leave(self) -> None:
        """Leave politely."""
        self.wire.close()
        self.run.leave()

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, message: Tensor | None, scale: float) -> Tensor | None:
        """Apply one message and answer it, on all shards at once. None: it was not finite."""
        late = self._resolve(RETRY_SECONDS)
        if late is not None and late[1] is not None and message is not None:
            if self.method.answers_with == "difference":
                return late[1]  # of the exchange that could not be delivered then: the spring has been felt
            assert late[0].message is not None
            message = message - late[0].message  # the center has that part of the change already
        if message is not None and not finite(message):
            return None
        kind = Kind.PULL if message is None else Kind.EXCHANGE
        return self._send(kind, message, scale, RETRY_SECONDS)

    def push(self, message: Tensor, scale: float) -> bool:
        """Apply one message that wants no answer."""
        self._resolve(RETRY_SECONDS)
        if not finite(message):
            return False
        self._send(Kind.PUSH, message, scale, RETRY_SECONDS)
        return True

    def exchange_together(self, message: Tensor | None, scale: float, deadline: float) -> Tensor | None:
        """One synchronous round: the shards answer when all who live have sent."""
        sound = message is None or finite(message)
        start = time.perf_counter()
        try:
            answer = self._send(Kind.TOGETHER if message is not None and sound else Kind.MEET, message, scale, deadline)
        except UnreachableError as error:
            raise TimeoutError(f"{error}: the round is not complete; give attach a longer deadline") from error
        self.locked_seconds += time.perf_counter() - start
        return answer if sound else None

    def _send(self, kind: Kind, message: Tensor | None, scale: float, seconds: float) -> Tensor | None:
        self._sequence += 1
        payloads: list[Tensor | None] = [None] * len(self.wire.bounds)
        if message is not None and kind != Kind.MEET:
            for k, (a, b) in enumerate(self.wire.bounds):
                part = message[a:b]
                payloads[k] = self.codec.encode(part) if self._plain else self._feedback[k].encode(part)
        return self._deliver(Parcel(kind, self._sequence, scale, message, payloads), seconds)

    def _resolve(self, seconds: float) -> tuple[Parcel, Tensor | None] | None:
        """Bring what was left open to its end first."""
        if (parcel := self._unanswered) is None:
            return None
        answer = self._deliver(parcel, seconds)
        self.news.append(("reached", f"the center answers again; exchange {parcel.sequence} is made up for"))
        return parcel, answer if parcel.kind == Kind.EXCHANGE else None

    def _deliver(self, parcel: Parcel, seconds: float) -> Tensor | None:
        self._unanswered = parcel
        answer = self._answers[0]
        cuts = [answer[a:b] for a, b in self.wire.bounds]
        if self._staging is None:
            into = [cut.view(torch.uint8) for cut in cuts]
        else:
            into = [self._staging[4 * a : 4 * b] for a, b in self.wire.bounds]
        try:
            replies = self.wire.deliver(parcel, into, seconds)
        except UnreachableError:
            # It waits for better times in memory of its own: the worker will use the message's again.
            parcel.message = None if parcel.message is None else parcel.message.clone()
            parcel.payloads = [None if payload is None else payload.clone() for payload in parcel.payloads]
            raise
        self._unanswered = None
        self.locked_seconds += self.wire.waited
        self.wire.waited = 0.0
        if any(reply.status == Status.REFUSED for reply, _ in replies):
            return None
        if parcel.kind == Kind.PUSH:
            return None
        for k, (reply, size) in enumerate(replies):
            self._unpack(k, reply, into[k][:size], cuts[k])
        self.squares = sum(reply.squares for reply, _ in replies)
        lost = any(reply.status == Status.LOST for reply, _ in replies)
        if lost and self.method.answers_with == "center":
            return self._send(Kind.PULL, None, 1.0, seconds)
        self._answers.reverse()
        return answer

    def _unpack(self, k: int, reply: Reply, packed: Tensor, out: Tensor) -> None:
        if reply.status == Status.LOST:
            out.zero_()  # a difference that nobody knows any more; an answer x̃ is asked for again
        elif reply.status == Status.PLAIN:
            out.copy_(packed.view(torch.float32))
            self._following[k] = Following(self.codec, out)
        elif not self._plain:
            memory = self._following[k]
            if self.method.answers_with == "center" and memory is not None:
                out.copy_(memory.decode(packed))
            else:
                out.copy_(self.codec.decode(packed, out.numel()))

    # reading ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of all the center's vectors between two exchanges."""
        vectors: dict[str, Tensor] = self.run.snapshot()
        return vectors

    def state_dict(self) -> dict[str, Tensor]:
        """What is evaluated, z where there is one, else x̃, as named tensors."""
        slots = self.snapshot()
        return self.layout.split(slots.get("average", slots["x"]))

    # turns -----------------------------------------------------------------------------------------------------

    def wait_turn(self, deadline: float) -> None:
        """Round-robin: wait until it is this rank's turn."""
        end = time.monotonic() + deadline
        while (holder := self.run.wait_turn()) != self.rank:
            if time.monotonic() > end:
                waits = f"worker {self.rank}: no turn within {deadline:g} s, worker {holder} holds it"
                raise TimeoutError(f"{waits}; give attach a longer deadline")

    def pass_turn(self) -> None:
        """Round-robin: the next worker may act."""
        self.run.pass_turn()


def check_header(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse a worker whose model, method or compression is not the run's, and list the difference."""
    problems = Layout.from_json(mine["layout"]).differences(Layout.from_json(theirs["layout"]))
    for what in ("method", "compression"):
        if mine[what] != theirs[what]:
            problems.append(f"the {what} is {mine[what]} here, {theirs[what]} in the run")
    refuse_misfit(problems)
