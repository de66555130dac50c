"""How a worker meets the center, in three ways that give the same numbers.

    hidden      when the step begins, x goes to the center on a background thread; the answer is due after the step
    in place    between gradient and step, x and x̃ move in one pass over memory, with no message and no answer
    blocking    when the step begins, and the step waits: a method that needs the answer first, or a synchronous round

The gradient is taken at the old x whether or not the answer has come, so hiding the exchange behind forward and
backward changes no number. Nor does moving in place, but for rounding: the step adds to x what it would have added, and
`Replica.in_place` says for which optimizers that holds. Hiding needs a core that is not busy; without one, one pass
over memory is the cheaper way.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import torch
from torch import Tensor

from easgd.center.client import CenterClient
from easgd.center.guard import refusal_error
from easgd.errors import CenterLostError, UnreachableError
from easgd.machine import usable_cores
from easgd.worker.recorder import Recorder
from easgd.worker.state import WorkerState

Policy = Literal["skip", "reset", "raise"]
Overlap = bool | Literal["auto"]


class Exchange:
    """One worker's side of every exchange. Without a client it only keeps the clock: a script that trains alone."""

    def __init__(
        self, state: WorkerState, client: CenterClient | None, recorder: Recorder, workers: int, *, schedule: str,
        nonfinite: Policy, overlap: Overlap, deadline: float, patience: int, still: bool,
        keep_weights: Callable[[], str],
    ) -> None:  # fmt: skip
        self.state, self._client, self.recorder, self.workers = state, client, recorder, workers
        self.method, self.replica = state.method, state.replica
        self.schedule, self.nonfinite, self.deadline, self.patience = schedule, nonfinite, deadline, patience
        self.keep_weights = keep_weights
        # Buffers change in the forward pass: they cannot wait for its end (`still` says that there are none).
        movable = client is not None and client.move is not None and schedule != "sync" and still
        self.moves = movable and overlap == "auto" and not idle_cores(workers)
        rounds_hide = getattr(client, "hides_rounds", False)  # an all-reduce; others wait where the workers can see it
        self.hides = overlap is not False and not self.method.waits and (schedule != "sync" or rounds_hide)
        self.answer: Tensor | None = None
        self.deferred = False
        self._comparing = workers > 1 and client is not None and state.incarnation == 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="easgd-exchange")
        self._pending: Future[Tensor | None] | None = None
        self._reset_due = self._unreached = False
        self._living, self.refusals = 0 if client is None else client.living, 0
        self._misses, self._seen, self._sent = 0, 0 if client is None else client.version, 0
        self._staleness: int | None = None
        self._distance: float | None = None

    @property
    def client(self) -> CenterClient:
        """The way to the center; only a worker alone has none."""
        assert self._client is not None
        return self._client

    # the parts of a step ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Top of the paper's loop, once per step."""
        self._staleness, self._distance, self._sent = None, None, 0
        if self.schedule == "round-robin":
            start = time.perf_counter()
            self.client.wait_turn(self.deadline)
            self.recorder.waiting += time.perf_counter() - start
        self.state.prepare()
        if self.state.due:
            self.deferred = self.moves and self.replica.in_place() is not None
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
        """After the optimizer's step: complete the exchange and write the step down."""
        clock = self.state.clock
        if self._comparing:
            self._compare_gradients()
        self.settle()
        start = time.perf_counter()
        answer, self.answer = self.answer, None
        push = self.state.finish(answer)
        if self._client is not None:
            if push is not None and not self._push(push):
                self._refused()
            self._reset()
            self.tell()
            if self.schedule == "round-robin":
                self.client.pass_turn()
        self.recorder.communication += time.perf_counter() - start
        self.recorder.step(clock, self._staleness, self._distance, self._sent)

    def settle(self) -> None:
        """Wait for the exchange that is under way, if there is one."""
        if self._pending is not None:
            start = time.perf_counter()
            answer = self._pending.result()
            self._pending = None  # only now: an interrupt while waiting must not lose d
            self._take(answer)
            self._spent(start)

    def tell(self) -> None:
        """Write down what the center's side has to tell, and the bytes that crossed a network."""
        while self.client.events:
            self.recorder.event(*self.client.events.pop(0))
        if self.client.bytes_sent:
            self._sent, self.client.bytes_sent = self.client.bytes_sent, 0

    def close(self) -> None:
        """Wait for what is under way; no more will come."""
        self._pool.shutdown(wait=True)

    def _compare_gradients(self) -> None:
        """Warn once if another worker's first gradient is the same to the last bit: then both draw the same batches.

        All start from one point, so nothing but their data tells the first gradients apart. Later ones, and the
        variables themselves, differ through the exchanges.
        """
        gradients = [p.grad for p in self.replica.params if p.grad is not None]
        if not all(bool(g.isfinite().all()) for g in map(_dense, gradients)):
            return  # a step that was skipped
        self._comparing = False
        if not any(bool(g.any()) for g in gradients):
            return
        digest = hashlib.blake2b(digest_size=8)
        for g in gradients:
            digest.update(_dense(g).detach().contiguous().cpu().view(torch.uint8).numpy().data)
        try:
            same = self.client.same_gradient(int.from_bytes(digest.digest(), "little") >> 1)
        except UnreachableError:
            return
        if len(same) == 1:  # of several equal workers, the second to report speaks
            line = (
                f"workers {same[0]} and {self.state.rank} have computed exactly the same first gradient: they draw the "
                "same batches; read data through worker.shard(loader), or seed generators by worker.rank"
            )
            self.recorder.event("warning", line)
            print(f"easgd: warning: {line}", file=sys.stderr)

    # the three ways --------------------------------------------------------------------------------------------

    def _move(self) -> bool:
        """The exchange in one pass; False if the parameters or the optimizer do not allow it after all."""
        start, parts = time.perf_counter(), self.replica.in_place()
        if parts is None:
            return False
        scale = self._scale()
        assert self.client.move is not None
        taken = self.client.move(parts, scale)
        self._answered(scale, own=taken)
        if not taken:
            self._refused()
        self._spent(start)
        return True

    def _send(self) -> None:
        """Hand the message to the center, and wait for the answer where the gradient needs it."""
        start, scale = time.perf_counter(), self._scale()
        with self.replica.unawaited(self.hides and self.method.sends_local):
            message = self.state.message()
        message = None if message is None else self._own(message)
        if self.hides:
            self._pending = self._pool.submit(self._carry, message, scale)
            self.recorder.communication += time.perf_counter() - start
            return
        self._take(self._carry(message, scale))
        self._reset()
        if self.answer is not None:
            self.state.receive(self.answer)
        self._spent(start)

    def _carry(self, message: Tensor | None, scale: float) -> Tensor | None:
        """The exchange itself, on whichever thread."""
        client, sync = self.client, self.schedule == "sync"
        self.replica.wait()  # for a message that is on its way from a device
        try:
            answer = (
                client.exchange_together(message, scale, self.deadline) if sync else client.exchange(message, scale)
            )
        except UnreachableError as error:
            self._missed(error)
            return None
        self._misses = 0
        self._answered(scale, own=answer is not None and message is not None)
        if self.hides and answer is not None:
            self.replica.send(answer)
        return answer

    def _push(self, message: Tensor) -> bool:
        """Send what wants no answer; whether the center took it."""
        scale = self._present_scale()
        if self.schedule == "sync":
            return self.client.exchange_together(message, scale, self.deadline) is not None
        try:
            taken = self.client.push(self._own(message), scale)
            self.refusals = 0 if taken else self.refusals
            return taken
        except UnreachableError as error:
            self._missed(error)
            self._unreached = False
            return True  # it is made up for at the next exchange

    def _scale(self) -> float:
        self._sent = 8 * self.replica.size
        return self._present_scale()

    def _present_scale(self) -> float:
        """The exchange's scalar with those who live now; that α has followed them is recorded."""
        before, self._living = self._living, self.client.living
        scale = self.method.scale(self.replica.lr, self._living, self.workers)
        if self._living != before:
            self.recorder.event("workers", f"{self._living} alive, scale {scale:.6g}")
        return scale

    def _own(self, message: Tensor) -> Tensor:
        """A message may be answered in its own memory: it must not be a parameter's."""
        return message.clone() if self.replica.owns(message) else message

    def _spent(self, start: float) -> None:
        """Count the time since `start`: as waiting, as far as others were in the way, else as communication."""
        spent = time.perf_counter() - start
        waited, self.client.wait_seconds = min(spent, self.client.wait_seconds), 0.0
        self.recorder.waiting += waited
        self.recorder.communication += spent - waited

    # what comes back -------------------------------------------------------------------------------------------

    def _answered(self, scale: float, own: bool) -> None:
        """Note what is recorded of an exchange that has been answered; `own` if it moved the center."""
        self.refusals = 0 if own else self.refusals
        if own and self.client.update_sqnorm is not None:
            self._distance = self.client.update_sqnorm**0.5 / scale  # ‖d‖ = α‖x − x̃‖
        self._staleness = max(0, self.client.version - self._seen - own)
        self._seen = self.client.version

    def _take(self, answer: Tensor | None) -> None:
        """An answer has come; None says that the center refused the message."""
        self.answer = answer
        unreached, self._unreached = self._unreached, False
        if answer is None and not unreached:
            self._refused()

    def _refused(self) -> None:
        """The center refused what was not finite or too far away: the policy decides what becomes of this worker."""
        rank, clock, why = self.state.rank, self.state.clock, self.client.refusal
        self.recorder.event("refused", f"step {clock}: {why}")
        if self.nonfinite == "raise":
            raise refusal_error(rank, clock, why)
        if not self.refusals:
            print(f"easgd: warning: worker {rank}, step {clock}: its exchange is refused ({why})", file=sys.stderr)
        self.refusals += 1
        self._reset_due = self.nonfinite == "reset"

    def _reset(self) -> None:
        """Start anew from the center, where the policy says so: never between a gradient and its step."""
        if self._reset_due:
            self._reset_due = False
            self.replica.reset_(self.client.snapshot()["x"])
            self.state.slots = self.method.start(self.replica)

    def _missed(self, error: UnreachableError) -> None:
        """The center does not answer: train on alone for a while, then end with the weights on disk."""
        self._unreached = True
        self._misses += 1
        detail = f"step {self.state.clock}: {error}; {self._misses} of {self.patience} in a row"
        self.recorder.event("unreachable", detail)
        if self._misses > self.patience:
            raise CenterLostError(f"{error}, {self._misses} exchanges in a row; {self.keep_weights()}") from error

    # saving ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is between two parts of a step."""
        self.settle()
        return {"deferred": self.deferred, "answer": None if self.answer is None else self.answer.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.settle()
        self._reset_due = False
        self.deferred = state["deferred"]
        self.answer = None if state["answer"] is None else state["answer"].clone()


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def idle_cores(workers: int) -> bool:
    """Whether this machine has cores that its workers leave idle."""
    return usable_cores() > workers * torch.get_num_threads()
