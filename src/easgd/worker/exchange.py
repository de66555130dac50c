"""How a worker meets the center, in three ways that give the same numbers.

    hidden      when the step begins, x goes to the center on a background thread; the answer is due after the step,
                or, with a delay, some steps later: then several may be in flight, one of each fragment at most
    in place    between gradient and step, x and x̃ move in one pass over memory, with no message and no answer
    blocking    when the step begins, and the step waits: a method that needs the answer first, or a synchronous round

The gradient is taken at the old x whether or not the answer has come, so hiding the exchange behind forward and
backward changes no number. Nor does moving in place, but for rounding: the step adds to x what it would have added, and
`Replica.in_place` says for which optimizers that holds. Hiding needs a core that is not busy; without one, one pass
over memory is the cheaper way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from easgd.center.client import CenterClient
from easgd.center.guard import refusal_error
from easgd.errors import CenterLostError, UnreachableError
from easgd.machine import usable_cores
from easgd.runtime import threading, time
from easgd.worker.first_gradient import FirstInputs, compare_first_gradients
from easgd.worker.in_flight import InFlight
from easgd.worker.pacing import set_period
from easgd.worker.recorder import Recorder
from easgd.worker.state import WorkerState

Policy = Literal["skip", "reset", "raise"]
Overlap = bool | Literal["auto"]


class Exchange:
    """One worker's side of every exchange. Without a client it only keeps the clock: a script that trains alone."""

    def __init__(
        self, state: WorkerState, client: CenterClient | None, recorder: Recorder, workers: int, *, schedule: str,
        nonfinite: Policy, overlap: Overlap, deadline: float, patience: int, still: bool,
        keep_weights: Callable[[], str], inputs: FirstInputs,
    ) -> None:  # fmt: skip
        self.state, self._client, self.recorder, self.workers = state, client, recorder, workers
        self.method, self.replica = state.method, state.replica
        self.schedule, self.nonfinite, self.deadline, self.patience = schedule, nonfinite, deadline, patience
        self.keep_weights, self.inputs = keep_weights, inputs
        # Buffers change in the forward pass: they cannot wait for its end (`still` says that there are none).
        movable = client is not None and client.move is not None and schedule != "sync" and still
        movable = movable and self.method.delay == 1
        self.moves = movable and overlap == "auto" and not idle_cores(workers)
        rounds_hide = client is not None and client.hides_rounds
        self.hides = overlap is not False and self.method.delay > 0 and (schedule != "sync" or rounds_hide)
        self.in_flight: list[InFlight] = []
        self.deferred = False
        self.comparing = workers > 1 and client is not None and state.incarnation == 0
        self._pool = threading.ThreadPoolExecutor(1, thread_name_prefix="easgd-exchange")
        self._reset_due, self._misses, self.refusals = False, 0, 0
        self._living, self._warned = 0 if client is None else client.living, False
        self._seen = [0 if client is None else client.updates(f) for f in range(self.method.fragments)]

    @property
    def client(self) -> CenterClient:
        """The way to the center; only a worker alone has none."""
        assert self._client is not None
        return self._client

    # the parts of a step ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Top of the paper's loop, once per step."""
        if self.schedule == "round-robin":
            start = time.perf_counter()
            self.client.wait_turn(self.deadline)
            self.recorder.waiting += time.perf_counter() - start
        self.state.prepare()
        if self.state.due:
            self.deferred = self.moves and self.state.parts[self.state.fragment].in_place() is not None
            if not self.deferred:
                self._send()

    def before_step(self, closure: bool) -> None:
        """The gradient is there, and the optimizer is about to take its step; a closure takes the gradient in it."""
        self.state.prepare()
        if self.deferred:
            self.deferred = False
            if closure or not self._move():  # a gradient that is yet to come is due at the old x
                self._send()

    def finish(self) -> None:
        """After the optimizer's step: complete the exchanges that are due and write the step down."""
        clock = self.state.clock
        if self.comparing:
            self.comparing = not compare_first_gradients(
                self.client, self.replica.params, self.state.rank, self.recorder, self.inputs
            )
            if not self.comparing:
                self.inputs.close()
        due = [flight for flight in self.in_flight if flight.due <= clock]
        # Whose turn ends must have exchanged in it, also if the answer is used later.
        for flight in self.in_flight if self.schedule == "round-robin" else due:
            self._settle(flight)
        start = time.perf_counter()
        pushes = [(flight.fragment, push) for flight in due if (push := self._use(flight)) is not None]
        if (own := self.state.finish()) is not None:
            pushes.append((0, own))
        sent = sum(flight.bytes for flight in due)
        if self._client is not None:
            sent += self._push(pushes)
            self._reset()
            self.tell()
            if self.schedule == "round-robin":
                self.client.pass_turn()
        self.recorder.communication += time.perf_counter() - start
        set_period(self, due)
        last = due[-1] if due else InFlight(0, 0, 0)
        self.recorder.step(clock, last.staleness, last.distance, sent)

    def _use(self, flight: InFlight) -> Tensor | None:
        """Use the answer of an exchange that has been waited for; return what the center must still add."""
        self.in_flight.remove(flight)
        return None if flight.answer is None else self.state.complete(flight.answer, flight.fragment)

    def settle(self) -> None:
        """Wait for the exchanges that are under way; their answers are used when they are due."""
        for flight in self.in_flight:
            self._settle(flight)

    def _settle(self, flight: InFlight) -> None:
        if flight.future is not None:
            start = time.perf_counter()
            flight.future.result()
            flight.future = None  # only now: an interrupt while waiting must not lose d
            self._spent(start, flight.waited)
            if flight.refused:
                self._refused()

    def tell(self) -> None:
        """Write down what the center's side has to tell."""
        while self.client.events:
            self.recorder.event(*self.client.events.pop(0))

    def close(self) -> None:
        """Wait for what is under way, and use the answers that later steps would have: both ends feel the spring."""
        self._pool.shutdown(wait=True)
        for flight in [flight for flight in self.in_flight if flight.asked < self.state.clock]:
            if flight.future is None or flight.future.exception() is None:
                self._use(flight)

    # the three ways --------------------------------------------------------------------------------------------

    def _move(self) -> bool:
        """The exchange in one pass; False if the parameters or the optimizer do not allow it after all."""
        start, flight = time.perf_counter(), self._ask()
        parts = self.state.parts[flight.fragment].in_place()
        if parts is None:
            return False
        scale = self._scale()
        assert self.client.move is not None
        taken = self.client.move(parts, scale, flight.fragment)
        self._account(flight, start)
        self._answered(flight, scale, own=taken)
        self.in_flight.append(flight)
        if not taken:
            self._refused()
        self._spent(start, flight.waited)
        return True

    def _send(self) -> None:
        """Hand the message to the center, and wait for the answer where the gradient needs it."""
        start, scale, flight = time.perf_counter(), self._scale(), self._ask()
        with self.state.parts[flight.fragment].unawaited(self.hides and self.method.sends_local):
            message = self.state.message()
        message = None if message is None else self._own(message, flight.fragment)
        if self.hides:
            self.in_flight.append(flight)
            flight.future = self._pool.submit(self._carry, flight, message, scale)
            self.recorder.communication += time.perf_counter() - start
            return
        self._carry(flight, message, scale)
        if flight.refused:
            self._refused()
        self._reset()
        self.in_flight.append(flight)
        if flight.answer is not None:
            self.state.receive(flight.answer, flight.fragment)
        self._spent(start, flight.waited)

    def _ask(self) -> InFlight:
        fragment = self.state.fragment
        size = self.state.parts[fragment].size
        return InFlight(fragment, self.state.clock, self.state.due_after, bytes=8 * size)

    def _carry(self, flight: InFlight, message: Tensor | None, scale: float) -> None:
        """The exchange itself, on whichever thread."""
        client, f, start, work = self.client, flight.fragment, time.perf_counter(), time.thread_time()
        part = self.state.parts[f]
        part.wait()  # for a message that is on its way from a device
        try:
            if self.schedule == "sync":
                flight.answer = client.exchange_together(message, scale, self.deadline, f)
            else:
                flight.answer = client.exchange(message, scale, f)
        except UnreachableError as error:
            self._missed(error)
            return
        finally:
            self._account(flight, start)
            flight.work = time.thread_time() - work
        self._misses = 0
        flight.refused = flight.answer is None
        self._answered(flight, scale, own=flight.answer is not None and message is not None)
        if self.hides and flight.answer is not None:
            part.send(flight.answer)

    def _push(self, pushes: list[tuple[int, Tensor]]) -> int:
        """Send what wants no answer; return the bytes that it took on a network."""
        if pushes:
            self.settle()  # one exchange at a time
        for fragment, message in pushes:
            if not self._pushed(message, fragment):
                self._refused()
        return self._network_bytes() if pushes else 0

    def _pushed(self, message: Tensor, fragment: int) -> bool:
        """Send one message that wants no answer; whether the center took it."""
        scale = self._scale()
        if self.schedule == "sync":
            return self.client.exchange_together(message, scale, self.deadline, fragment) is not None
        try:
            taken = self.client.push(self._own(message, fragment), scale, fragment)
            self.refusals = 0 if taken else self.refusals
            return taken
        except UnreachableError as error:
            self._missed(error)
            return True  # it is made up for at the next exchange

    def _scale(self) -> float:
        """The exchange's scalar with those who live now; that α has followed them is recorded."""
        before, self._living = self._living, self.client.living
        scale = self.method.scale(self.replica.lr, self._living, self.workers)
        if self._living != before:
            self.recorder.event("workers", f"{self._living} alive, scale {scale:.6g}")
        return scale

    def _network_bytes(self) -> int:
        sent, self.client.bytes_sent = self.client.bytes_sent, 0
        return sent

    def _own(self, message: Tensor, fragment: int) -> Tensor:
        """A message may be answered in its own memory: it must not be a parameter's."""
        return message.clone() if self.state.parts[fragment].owns(message) else message

    def _spent(self, start: float, waited: float) -> None:
        """Count the time since `start`: as waiting, as far as others were in the way, else as communication."""
        spent = time.perf_counter() - start
        waited = min(spent, waited)
        self.recorder.waiting += waited
        self.recorder.communication += spent - waited

    # what comes back -------------------------------------------------------------------------------------------

    def _answered(self, flight: InFlight, scale: float, own: bool) -> None:
        """Note what is recorded of an exchange that has been answered; `own` if it moved the center."""
        client, f = self.client, flight.fragment
        self.refusals = 0 if own else self.refusals
        if own and client.update_sqnorm is not None:
            flight.distance = client.update_sqnorm**0.5 / scale  # ‖d‖ = α‖x − x̃‖
        flight.staleness = max(0, client.updates(f) - self._seen[f] - own)
        self._seen[f] = client.updates(f)

    def _account(self, flight: InFlight, start: float) -> None:
        """Note what an exchange took, also one that was not answered."""
        sent = self._network_bytes()
        flight.bytes = sent if self.client.counts_bytes else flight.bytes
        flight.waited, self.client.wait_seconds = self.client.wait_seconds, 0.0
        flight.seconds = max(0.0, time.perf_counter() - start - flight.waited)

    def _refused(self) -> None:
        """The center refused what was not finite or too far away: the policy decides what becomes of this worker."""
        rank, clock, why = self.state.rank, self.state.clock, self.client.refusal
        self.recorder.event("refused", f"step {clock}: {why}")
        if self.nonfinite == "raise":
            raise refusal_error(rank, clock, why)
        if not self._warned:  # the records have every refusal
            self._warned = True
            print(f"easgd: warning: worker {rank}, step {clock}: its exchange is refused ({why})", file=sys.stderr)
        self.refusals += 1
        self._reset_due = self.nonfinite == "reset"

    def _reset(self) -> None:
        """Start anew from the center, where the policy says so: never between a gradient and its step."""
        if self._reset_due:
            self.settle()
            self.in_flight.clear()  # those answers were for the old x
            self._reset_due = False
            self.replica.reset_(self.client.snapshot()["x"])
            self.state.start()

    def _missed(self, error: UnreachableError) -> None:
        """The center does not answer: train on alone for a while, then end with the weights on disk."""
        self._misses += 1
        detail = f"step {self.state.clock}: {error}; {self._misses} of {self.patience} in a row"
        self.recorder.event("unreachable", detail)
        if self._misses > self.patience:
            raise CenterLostError(f"{error}, {self._misses} exchanges in a row; {self.keep_weights()}") from error

    # saving ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is between two parts of a step."""
        self.settle()
        return {"deferred": self.deferred, "in_flight": [flight.state_dict() for flight in self.in_flight]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.settle()
        self._reset_due = False
        self.deferred = state["deferred"]
        self.in_flight = [InFlight.from_state(flight) for flight in state["in_flight"]]


def idle_cores(workers: int) -> bool:
    """Whether this machine has cores that its workers leave idle."""
    return usable_cores() > workers * torch.get_num_threads()
