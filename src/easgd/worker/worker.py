"""The worker that `easgd.attach` makes of a training script.

The user's loop stays as it is. Three hooks drive the paper's loop around it:

    forward begins      τ divides t: x goes to the center; the exchange runs on a background thread
    optimizer.step      a changed learning rate is followed; torch takes the local step
    …and after it       wait for the answer, x ← x − d; the clock ticks

The gradient is taken at the old x whether or not the answer has come, so hiding the exchange behind forward and
backward changes no number. A method that needs the answer first (DOWNPOUR) gets it before the forward goes on.

Where the center is in reach, EASGD does better than hiding: between gradient and step, x and x̃ move in one pass over
memory, with no message and no answer. The step adds to x what it would have added, so this too changes no number;
`Replica.in_place` says for which optimizers that holds.

Alone, with no launcher, nothing is exchanged and the script trains as it did before.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from easgd import checkpoint
from easgd.center.apply import moves_in_place
from easgd.center.door import Door
from easgd.center.memory import MemoryCenter
from easgd.center.segment import Layout
from easgd.center.shared import SharedCenter
from easgd.errors import CenterLostError, NonFiniteError, SettingError, UnreachableError
from easgd.flat import Replica
from easgd.methods import Method
from easgd.worker import stability
from easgd.worker.loop import Loop
from easgd.worker.place import Place
from easgd.worker.recorder import Recorder
from easgd.worker.tensors import exchanged, full_state, remainder

GATHER_SECONDS = 60.0
Policy = Literal["skip", "reset", "raise"]
Buffers = Literal["average", "local", "recalibrate"]
_OPEN: set[Worker] = set()  # in a run and not closed yet


class Worker:
    """A training script's place in a run. Made by `attach`; most scripts use only `shard` and `center`."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, method: Method, place: Place, *,
        buffers: Buffers, nonfinite: Policy, overlap: bool, deadline: float, seed: int, curvature: float | None,
        saved: dict[str, Any] | None = None, patience: int = 10,
    ) -> None:  # fmt: skip
        if not place.alone:
            method.check(place.workers, float(optimizer.param_groups[0]["lr"]))
        self.model, self.method, self.place, self.buffers = model, method, place, buffers
        self.nonfinite, self.overlap, self.deadline, self.seed = nonfinite, overlap, deadline, seed
        self.curvature, self.patience = curvature, patience
        self.schedule = place.schedule or ("sync" if getattr(method, "sync", False) else "async")
        self.tensors = exchanged(model, optimizer, averaged_buffers=buffers == "average")
        self.replica = Replica(list(self.tensors.values()), optimizer)
        self.loop = Loop(place.rank, self.replica, method)
        self.recorder = Recorder(place.rank, place.incarnation, place.out, place.origin, place.node)
        self.home: Door | None = None
        # Alone, an averaged sequential method (ASGD) still has its average to keep.
        alone = place.alone and method.sequential and method.keeps_average
        self._solo = MemoryCenter(self.replica.read(), method) if alone else None
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[Tensor | None] | None = None
        self._answer: Tensor | None = None
        # Buffers change in the forward pass, behind which the exchange runs: they are copied before it.
        still = all(t.requires_grad for t in self.tensors.values())
        self._movable = still and self.schedule != "sync" and moves_in_place(method)
        self._begun = self._eager = self._closed = self._reset_due = self._unreached = self._deferred = False
        self._misses = 0
        self._seen, self._sent = 0, 0
        self._staleness: int | None = None
        self._distance: float | None = None
        if not place.alone:
            self._enter(place, saved)
            _OPEN.add(self)
        self._optimized = sum(len(group["params"]) for group in optimizer.param_groups)
        self._hook(model, optimizer)

    def _enter(self, place: Place, saved: dict[str, Any] | None) -> None:
        """Find the center, start from its value."""
        self.home = self._find(place, self.replica.read(), Layout.of(self.tensors), saved)
        self.replica.write_(self.home.join(place.incarnation))
        self.loop.slots = self.method.start(self.replica)
        self.loop.incarnation = place.incarnation
        if place.incarnation == 0 and (missing := self.home.gather(GATHER_SECONDS)):
            self.recorder.event("warning", f"{missing} of {place.workers} workers did not come; going on without them")
        self.recorder.begin(self.home.begin(place.elapsed))
        self._seen = self.home.version
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="easgd-exchange")
        self.recorder.event("join", self.method.describe(place.workers, self.replica.lr))
        if place.rank == 0 and place.incarnation == 0:
            for line in stability.warnings(self.method, self.replica.lr, place.workers, self.schedule, self.curvature):
                self.recorder.event("warning", line)
                print(f"easgd: warning: {line}", file=sys.stderr)

    def _find(self, place: Place, start: Tensor, layout: Layout, saved: dict[str, Any] | None) -> Door:
        if place.run is not None:
            return SharedCenter(place.run, self.method, start, layout, place.rank, place.workers, saved)
        from easgd.center.cluster import connect  # needs Ray

        assert place.cluster is not None
        return connect(
            place.cluster, place.center, self.method, start, layout, place.rank, place.incarnation, place.workers,
            place.compression, saved,
        )  # fmt: skip

    def _hook(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        # The hooks hold the worker: a script may call `attach` and forget what it returned. They must not be traced
        # into a compiled graph.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def before_forward(module: nn.Module, args: Any) -> None:
            if module.training and torch.is_grad_enabled():
                self._begin()

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def before_step(opt: Any, args: Any, kwargs: Any) -> None:
            # The arguments are those of `step`, the optimizer itself first.
            self._before_step(closure=any(a is not None for a in (*args[1:], kwargs.get("closure"))))

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def after_step(opt: Any, args: Any, kwargs: Any) -> None:
            self._finish()

        self._hooks = [
            model.register_forward_pre_hook(before_forward),
            optimizer.register_step_pre_hook(before_step),
            optimizer.register_step_post_hook(after_step),
        ]
        me = weakref.ref(self)

        def at_exit() -> None:
            if (worker := me()) is not None:
                worker.close()

        atexit.register(at_exit)

    # what users read -------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self.place.rank

    @property
    def workers(self) -> int:
        """How many workers were launched."""
        return self.place.workers

    @property
    def clock(self) -> int:
        """The worker's own clock tⁱ: optimizer steps taken."""
        return self.loop.clock

    def shard(self, loader: Any) -> Iterable[Any]:
        """Iterate over a `DataLoader` in this worker's own seeded order; every worker sees the entire set."""
        from easgd.data import shard

        mine = loader if self.place.alone else shard(loader, self.rank, self.workers, seed=self.seed)
        return _Timed(mine, self.recorder)

    def center(self, batches: Iterable[Any] | None = None) -> dict[str, Tensor]:
        """Return the center (z where one is kept) as a state dict of the model: what is evaluated and shipped.

        Args:
            batches: inputs for `buffers="recalibrate"`, to measure normalisation statistics at the center.
        """
        if self._solo is not None:
            return full_state(self.model, self.tensors, Layout.of(self.tensors).split(self._solo.measured))
        if self.home is None:
            return {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        state = full_state(self.model, self.tensors, self.home.state_dict())
        if self.buffers == "recalibrate":
            from easgd.worker.recalibrate import recalibrated

            state = recalibrated(self.model, state, batches)
        return state

    # the loop --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Top of the paper's loop, once per step."""
        if self._begun or self._closed:
            return
        self._begun = True
        if self.home is None:
            return
        self._staleness, self._distance, self._sent = None, None, 0
        if self.schedule == "round-robin":
            start = time.perf_counter()
            self.home.wait_turn(self.deadline)
            self.recorder.waiting += time.perf_counter() - start
        self.loop.prepare()
        if not self.loop.due:
            return
        near = isinstance(self.home, SharedCenter) and self._movable
        self._deferred = near and self.replica.in_place() is not None
        if not self._deferred:
            self._send()

    def _move(self) -> bool:
        """The exchange in one pass, just before the step; False if the parameters or the optimizer do not allow it."""
        home, start, parts = self.home, time.perf_counter(), self.replica.in_place()
        if parts is None:
            return False
        assert isinstance(home, SharedCenter)
        scale = self._scale()
        taken = home.move(parts, scale)
        self._answered(home, scale, own=taken)
        if not taken:
            self._refused()
        self._spent(start)
        return True

    def _scale(self) -> float:
        assert self.home is not None
        self._sent = 8 * self.replica.size
        return self.method.scale(self.replica.lr, self.home.living, self.workers)

    def _send(self) -> None:
        """Hand the message to the center, and wait for the answer where the gradient needs it."""
        assert self._pool is not None
        start, scale = time.perf_counter(), self._scale()
        message = self.loop.message()
        message = None if message is None else self._own(message)
        if self.overlap and not self.method.waits and self.schedule != "sync":
            self._pending = self._pool.submit(self._exchange, message, scale)
            self.recorder.communication += time.perf_counter() - start
            return
        self._take(self._exchange(message, scale))
        self._reset()
        if self._answer is not None:
            self.loop.receive(self._answer)
        self._spent(start)

    def _spent(self, start: float) -> None:
        """Count the time since `start`: as waiting, as far as others were in the way, else as communication."""
        assert self.home is not None
        spent = time.perf_counter() - start
        waited = min(spent, self.home.locked_seconds)
        self.home.locked_seconds = 0.0
        self.recorder.waiting += waited
        self.recorder.communication += spent - waited

    def _own(self, message: Tensor) -> Tensor:
        """A message may be answered in its own memory: it must not be a parameter's."""
        return message.clone() if self.replica.owns(message) else message

    def _exchange(self, message: Tensor | None, scale: float) -> Tensor | None:
        """The exchange itself, on whichever thread."""
        home, sync = self.home, self.schedule == "sync"
        assert home is not None
        try:
            answer = home.exchange_together(message, scale, self.deadline) if sync else home.exchange(message, scale)
        except UnreachableError as error:
            self._missed(error)
            return None
        self._misses = 0
        self._answered(home, scale, own=answer is not None and message is not None)
        return answer

    def _answered(self, home: Door, scale: float, own: bool) -> None:
        """Note what is recorded of an exchange that has been answered; `own` if it moved the center."""
        if own and self.schedule != "sync" and self.method.answers_with == "difference":
            self._distance = home.squares**0.5 / scale  # ‖d‖ = α‖x − x̃‖
        self._staleness = max(0, home.version - self._seen - own)
        self._seen = home.version

    def _missed(self, error: UnreachableError) -> None:
        """The center does not answer: train on alone for a while, then end with the weights on disk."""
        self._unreached = True
        self._misses += 1
        self.recorder.event("unreachable", f"step {self.clock}: {error}; {self._misses} of {self.patience} in a row")
        if self._misses > self.patience:
            kept = self._keep_weights()
            raise CenterLostError(f"{error}, {self._misses} exchanges in a row; {kept}") from error

    def _keep_weights(self) -> str:
        if self.place.out is None:
            return "there is no folder to keep its weights in"
        path = self.place.out / f"weights-{self.rank}.safetensors"
        try:
            checkpoint.save(path, {"clock": self.clock, "model": dict(self.model.state_dict())})
        except OSError as problem:
            return f"its weights could not be kept: {problem}"
        return f"its weights are in {path}"

    def _take(self, answer: Tensor | None) -> None:
        """An answer has come; None says that the message was not finite and the center refused it."""
        self._answer = answer
        unreached, self._unreached = self._unreached, False
        if answer is None and not unreached:
            self._refused()

    def _refused(self) -> None:
        """The center refused what was not finite: the policy decides what becomes of this worker."""
        self.recorder.event("refused", f"step {self.clock}: not finite")
        if self.nonfinite == "raise":
            where = f"worker {self.rank}, step {self.clock}"
            raise NonFiniteError(f'{where}: its variable is not finite; lower lr, or write nonfinite="reset"')
        self._reset_due = self.nonfinite == "reset"

    def _reset(self) -> None:
        """Start anew from the center, where the policy says so: never between a gradient and its step."""
        if self._reset_due:
            assert self.home is not None
            self._reset_due = False
            self.replica.reset_(self.home.snapshot()["x"])
            self.loop.slots = self.method.start(self.replica)

    def _before_step(self, closure: bool) -> None:
        if not self._begun:
            # The model's forward was not what ran: a step that has its gradient already can only begin now, and the
            # next one begins as soon as this one has ended.
            self._eager = True
            self._begin()
        if self.home is not None:
            self._check_groups()
            self.loop.prepare()
        if self._deferred:
            self._deferred = False
            if closure or not self._move():  # a closure takes its gradient in the step: x must not have moved
                self._send()

    def _check_groups(self) -> None:
        now = sum(len(group["params"]) for group in self.replica.optimizer.param_groups)
        if now != self._optimized:
            then = self._optimized
            raise SettingError(f"the optimizer has {now} parameters, {then} when attached; attach after adding them")

    def _settle(self) -> None:
        """Wait for the exchange that is under way, if there is one."""
        if self._pending is not None:
            start = time.perf_counter()
            answer = self._pending.result()
            self._pending = None  # only now: an interrupt while waiting must not lose d
            self._take(answer)
            self._spent(start)

    def _finish(self) -> None:
        """After the optimizer's step: complete the exchange."""
        clock = self.clock
        self._settle()
        start = time.perf_counter()
        answer, self._answer = self._answer, None
        if self.home is None:
            self.loop.clock += 1
            if self._solo is not None:
                self._solo.push(self.replica.read(), 1.0)
        elif (push := self.loop.finish(answer)) is not None:
            scale = self.method.scale(self.replica.lr, self.home.living, self.workers)
            if self.schedule == "sync":
                taken = self.home.exchange_together(push, scale, self.deadline) is not None
            else:
                taken = self._pushed(self._own(push), scale)
            if not taken:
                self._refused()
        self._reset()
        self.recorder.communication += time.perf_counter() - start
        if self.home is not None:
            self._tell(self.home)
            if self.schedule == "round-robin":
                self.home.pass_turn()
        self.recorder.step(clock, self._staleness, self._distance, self._sent)
        self._begun = False
        if self._eager:
            self._begin()

    def _pushed(self, message: Tensor, scale: float) -> bool:
        assert self.home is not None
        try:
            return self.home.push(message, scale)
        except UnreachableError as error:
            self._missed(error)
            self._unreached = False
            return True  # it is made up for at the next exchange

    def _tell(self, home: Door) -> None:
        """Write down what the center's side has to tell, and the bytes that crossed a network."""
        while home.news:
            self.recorder.event(*home.news.pop(0))
        if home.moved:
            self._sent, home.moved = home.moved, 0

    # saving and leaving ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Clock, phase, incarnation and the method's vectors; model and optimizer are saved by their own."""
        self._settle()
        return {
            "clock": self.loop.clock,
            "incarnation": self.loop.incarnation,
            "begun": self._begun,
            "deferred": self._deferred,
            "answer": None if self._answer is None else self._answer.clone(),
            "slots": {name: vector.clone() for name, vector in self.loop.slots.items()},
            "rates": list(self.replica.rates),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, after model and optimizer have taken theirs."""
        missing = {"clock", "incarnation", "begun", "deferred", "answer", "slots", "rates"} - state.keys()
        if missing:
            raise SettingError(
                f"not a worker's state: it has no {', '.join(sorted(missing))}; give what state_dict gave"
            )
        self._settle()
        self._reset_due = False
        self.loop.clock, self.loop.incarnation = state["clock"], state["incarnation"]
        self._begun, self._deferred = state["begun"], state["deferred"]
        self._answer = None if state["answer"] is None else state["answer"].clone()
        self.loop.slots = {name: vector.clone() for name, vector in state["slots"].items()}
        self.replica.rates = list(state["rates"])

    def close(self) -> None:
        """Leave the run: wait for what is under way, let the others know. Runs by itself when the script ends."""
        if self._closed:
            return
        self._closed = True
        _OPEN.discard(self)
        for hook in self._hooks:
            hook.remove()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self.home is not None:
            try:
                with suppress(UnreachableError):
                    self.home.leave_behind(*remainder(self.model, self.tensors))
            finally:
                with suppress(UnreachableError):
                    self.home.leave()
                self._tell(self.home)
                self.recorder.event("leave")
        self.recorder.close()


def close_all() -> None:
    """Close every worker of this process that is in a run: a process that lives on does so after a script has ended."""
    for worker in list(_OPEN):
        worker.close()


class _Timed:
    """A loader whose waiting time is counted as data time."""

    def __init__(self, loader: Any, recorder: Recorder) -> None:
        self.loader, self.recorder = loader, recorder

    def __iter__(self) -> Any:
        return self.recorder.timed(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
