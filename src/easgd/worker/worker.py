"""The worker that `easgd.attach` makes of a training script.

The user's loop stays as it is. Three hooks drive the paper's loop around it:

    forward begins      τ divides t: an exchange is due (`easgd.worker.exchange`)
    optimizer.step      a changed learning rate is followed; torch takes the local step
    …and after it       the exchange is completed; the clock ticks

Alone, with no launcher, nothing is exchanged and the script trains as it did before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from easgd import checkpoint
from easgd.center.client import CenterClient, JoinRequest
from easgd.center.guard import FACTOR
from easgd.center.layout import Layout
from easgd.center.memory import MemoryClient
from easgd.center.transports import connect
from easgd.console import show
from easgd.errors import SettingError, UnreachableError
from easgd.groups.client import connect_group
from easgd.learning_rate import full_rate
from easgd.methods import Method
from easgd.records import Attached
from easgd.worker import open_workers, stability
from easgd.worker.context import RunContext
from easgd.worker.exchange import Exchange, Overlap, Policy
from easgd.worker.first_gradient import FirstInputs
from easgd.worker.group_member import GroupMember
from easgd.worker.held_center import compare, copied, holding
from easgd.worker.hooks import install_hooks
from easgd.worker.last_exchange import last_exchange
from easgd.worker.process_group import check_synchronous, own_device
from easgd.worker.recorder import Recorder, TimedLoader
from easgd.worker.schedule_free import ScheduleFreeReplica, check_kind, replica_of
from easgd.worker.script_checks import OtherOptimizers, StartingWeights, check_optimizer
from easgd.worker.state import WorkerState
from easgd.worker.tensors import bare, check_tied, exchanged, full_state, remainder

GATHER_SECONDS = 60.0
Buffers = Literal["average", "local", "recalibrate"]


class Worker:
    """A training script's place in a run. Made by `attach`; most scripts use only `shard` and `center`.

    Example:
        >>> import torch, easgd
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> worker = easgd.attach(model, optimizer, easgd.EASGD(period=10))
        >>> worker.rank, worker.workers, worker.clock, sorted(worker.center())
        (0, 1, 0, ['bias', 'weight'])
        >>> worker.close()
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, method: Method, context: RunContext, *,
        buffers: Buffers, nonfinite: Policy, overlap: Overlap, deadline: float, seed: int, curvature: float | None,
        saved: dict[str, Any] | None = None, patience: int = 10, include_frozen: bool = False,
        process_group: Any = None, guard: float = FACTOR,
    ) -> None:  # fmt: skip
        self.schedule = context.schedule or ("sync" if getattr(method, "sync", False) else "async")
        if not context.alone:
            method.check(context.workers, full_rate(optimizer))
            method.check_schedule(self.schedule)
        self.model, self.method, self.context, self.buffers = model, method, context, buffers
        self.module = bare(model)
        self.seed, self.curvature = seed, curvature
        check_synchronous(context, method, self.schedule)
        self.group = GroupMember(context, model, optimizer, deadline) if context.nproc > 1 else None
        self.tensors = exchanged(
            self.module, optimizer, averaged_buffers=buffers == "average", include_frozen=include_frozen
        )
        method.check_size(sum(t.numel() for t in self.tensors.values()), len(self.tensors))
        self.replica = replica_of(list(self.tensors.values()), optimizer)
        self.state = WorkerState(context.rank, self.replica, method, alone=context.alone)
        self.recorder = Recorder(context.rank, context.incarnation, context.out, context.origin, context.node)
        self.orders_batches = self.rank_asked = False
        self.stream = (context.rank, context.workers) if self.group is None else self.group.stream
        self._begun = self._eager = self._skipped = self._closed = False
        self._hooks: list[RemovableHandle] = []
        self.client = self._connect(saved, deadline, process_group, guard)
        if not context.alone:
            self._enter()
        open_workers.enter(self)
        if self.state.controller is not None:
            self.state.controller.stable = stability.stable_period(
                method, full_rate(optimizer), context.workers, self.schedule, curvature
            )
        self.exchange = Exchange(
            self.state, self.client, self.recorder, context.workers, schedule=self.schedule, nonfinite=nonfinite,
            overlap=overlap, deadline=deadline, patience=patience, keep_weights=self._keep_weights,
            still=all(tensor.requires_grad for tensor in self.tensors.values()), inputs=FirstInputs(),
        )  # fmt: skip
        self.tied = {id(tensor) for tensor in self.tensors.values()}
        self._optimized = sum(len(group["params"]) for group in optimizer.param_groups)
        self._starting = None if self.replica.sharded or saved else StartingWeights([*self.tensors.values()])
        self._hooks = install_hooks(self, model, optimizer)
        if not context.alone:
            self._hooks.append(OtherOptimizers(self).watch())
        check_optimizer(self)

    def _connect(
        self, saved: dict[str, Any] | None, deadline: float, process_group: Any, guard: float
    ) -> CenterClient | None:
        """Find the center. A worker alone has one only where an average is kept: else the center is its own x."""
        context, layout = self.context, Layout.of(self.tensors)
        request = JoinRequest(
            self.method, self.replica.read(), layout, context.rank, context.incarnation, context.workers,
            context.center, context.compression, saved, deadline, process_group, guard, context.history,
            context.machine_period,
        )  # fmt: skip
        if context.run is not None:
            ranks = None if self.group is None else self.group.group
            return connect(context.run, request) if ranks is None else connect_group(context.run, request, ranks)
        return MemoryClient(request) if self.method.sequential and self.method.keeps_average else None

    def _enter(self) -> None:
        """Join the run: start from the center's value, wait for the others, say what the theory warns of."""
        client, context = self.client, self.context
        assert client is not None
        self.replica.write_(client.join(context.incarnation))
        self.state.start()
        self.state.incarnation = context.incarnation
        if context.incarnation == 0 and (missing := client.gather(GATHER_SECONDS)):
            self.recorder.event(
                "warning", f"{missing} of {context.workers} workers did not come; going on without them"
            )
        self.recorder.begin(client.begin(context.elapsed))
        method, lr, engine = self.method, full_rate(self.replica.optimizer), (context.run or "").partition(":")[0]
        attached = Attached(method.name, context.workers, method.period, lr, engine)
        self.recorder.event("join", method.describe(context.workers, lr), attached)
        if context.rank == context.incarnation == context.member == 0:
            for line in stability.warnings(method, lr, context.workers, self.schedule, self.curvature):
                self.recorder.event("warning", line)
                print(f"easgd: warning: {line}", file=sys.stderr)

    # what users read -------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        # Before the first step it may be asked for to choose the data (`worker.batch_order`); later to save or print.
        self.rank_asked = self.rank_asked or self.clock == 0
        return self.context.rank

    @property
    def workers(self) -> int:
        """How many workers were launched."""
        return self.context.workers

    @property
    def member(self) -> int:
        """This process's rank within its worker, where that is a group; else 0."""
        return self.context.member

    @property
    def clock(self) -> int:
        """The worker's own clock tⁱ: optimizer steps taken."""
        return self.state.clock

    @property
    def device(self) -> torch.device:
        """The device to train on: the first accelerator of this worker's share (of a group, one a rank), or the CPU."""
        return own_device()

    def log(self, **scalars: float) -> None:
        """Add numbers of your own to this step's record: `worker.log(loss=loss.item())`.

        `loss` is shown in the live view and the report; the others stand in the record under "scalars".
        """
        self.recorder.log(scalars)

    def shard(self, loader: Any) -> Iterable[Any]:
        """Iterate over a `DataLoader` in this worker's own seeded order; every worker sees the entire set."""
        from easgd.data import shard

        place = (self.rank, self.workers) if self.group is None else self.group.data_place()
        mine = loader if self.context.alone else shard(loader, *place, seed=self.seed)
        return TimedLoader(mine, self.recorder)

    def center(self, batches: Iterable[Any] | None = None) -> dict[str, Tensor]:
        """Return the center (z where one is kept) as a state dict of the model: what is evaluated and shipped.

        Args:
            batches: inputs for `buffers="recalibrate"`, to measure normalisation statistics at the center.
        """
        if self.client is not None:
            values = self.client.state_dict()
        elif self.method.sequential or isinstance(self.replica, ScheduleFreeReplica):
            values = Layout.of(self.tensors).split(self.state.local())  # the paper's x, not a look-ahead point
        else:
            return copied(self.module)
        state = full_state(self.module, self.tensors, values)
        if self.buffers == "recalibrate" and not self.context.alone:
            from easgd.worker.recalibrate import recalibrated

            state = recalibrated(self.module, state, batches)
        return state

    def at_center(self) -> AbstractContextManager[None]:
        """Let the model hold the center's weights inside a `with` block, for an evaluation; then its own again."""
        return holding(self.module, self.replica.optimizer, self.center())

    def compare(self, evaluate: Callable[[], float], *, tell: bool = True) -> tuple[float, float]:
        """Call `evaluate` with the worker's own weights and with the center's; return both values.

        They are recorded as `own` and `center` of this step, and printed unless `tell` is False.
        """
        own, center = compare(self, evaluate)
        self.log(own=own, center=center)
        if tell:
            show(f"easgd: step {self.clock}: own weights {own:.4f}, center {center:.4f}\n")
        return own, center

    # the loop --------------------------------------------------------------------------------------------------

    def begin_average(self) -> None:
        """Begin the time average of the center anew, as the paper's ASGD does at the first drop of η on ImageNet."""
        if self.client is not None:
            self.client.begin_average()

    def begin(self) -> None:
        """Begin a step, once: the model's forward is about to run."""
        if self._begun or self._closed:
            return
        self._begun = True
        if self._starting is not None:
            self._starting.check(self.context.alone)
            self._starting = None
        self.exchange.begin()

    def before_step(self, closure: bool) -> None:
        """The optimizer is about to step; a closure will compute the gradient in it."""
        # A fused optimizer is called by GradScaler even if it will not move: such a step is no step of the clock.
        found_inf = getattr(self.replica.optimizer, "found_inf", None)
        self._skipped = found_inf is not None and bool(found_inf)
        if self._skipped:
            return
        if not self._begun:
            # The model's forward was not what ran: a step that has its gradient already can only begin now, and the
            # next one begins as soon as this one has ended.
            self._eager = True
            self.begin()
        if not self.context.alone:
            self._optimized = check_tied(self.model, self.replica.optimizer, self.tied, self._optimized)
            check_kind(self.replica)
        if self.group is not None:
            self.group.before_step(closure)
        self.exchange.before_step(closure)

    def finish(self) -> None:
        """The optimizer has stepped: complete the exchange."""
        if self._skipped:
            return
        self.exchange.finish()
        self._begun = False
        if self._eager:
            self.begin()

    def skip_step(self) -> None:
        """Count a step that moved nothing, because a gradient was not finite, where the training loop counts it too."""
        self.begin()
        self.exchange.before_step(closure=True)  # no step follows that an exchange in place could be adapted to
        self.exchange.finish()
        self._begun = False

    # saving and leaving ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Clock, phase, incarnation and the method's vectors; model and optimizer are saved by their own."""
        return {
            "clock": self.state.clock,
            "exchanges": self.state.exchanges,
            "incarnation": self.state.incarnation,
            "begun": self._begun,
            **self.exchange.state_dict(),
            "slots": [{name: vector.clone() for name, vector in slots.items()} for slots in self.state.slots],
            "rates": list(self.replica.rates),
            "controller": None if self.state.controller is None else self.state.controller.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, after model and optimizer have taken theirs."""
        known = {"clock", "exchanges", "incarnation", "begun", "deferred", "in_flight", "slots", "rates"}
        missing = known - state.keys()
        if missing:
            raise SettingError(
                f"not a worker's state: it has no {', '.join(sorted(missing))}; give what state_dict gave"
            )
        self._starting = None  # the weights that belong to this state have been loaded
        self.exchange.load_state_dict(state)
        self.state.clock, self.state.exchanges = state["clock"], state["exchanges"]
        self.state.incarnation = state["incarnation"]
        self._begun = state["begun"]
        self.state.slots = [{name: vector.clone() for name, vector in slots.items()} for slots in state["slots"]]
        self.replica.rates = list(state["rates"])
        if self.state.controller is not None and state.get("controller") is not None:
            self.state.controller.load_state_dict(state["controller"])

    def _keep_weights(self) -> str:
        if self.context.out is None:
            return "there is no folder to keep its weights in"
        path = self.context.out / f"weights-{self.context.rank}.safetensors"
        try:
            checkpoint.save(path, {"clock": self.clock, "model": dict(self.module.state_dict())})
        except OSError as problem:
            return f"its weights could not be kept: {problem}"
        return f"its weights are in {path}"

    def part(self) -> None:
        """Bring the center the steps since the last exchange, then `close`: the process has been asked to end."""
        if not self._closed and self.client is not None:
            with suppress(UnreachableError):
                last_exchange(self.exchange)
        self.close()

    def abandon(self) -> None:
        """Forget the run without a word to it: this is a copy, in a process that the script has forked."""
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        self.recorder.abandon()

    def close(self) -> None:
        """Leave the run: wait for what is under way, let the others know. Runs by itself when the script ends."""
        if self._closed:
            return
        self._closed = True
        open_workers.leave(self)
        for hook in self._hooks:
            hook.remove()
        self.exchange.close()
        if self.exchange.refusals:
            open_workers.note_apart(f"worker {self.rank}", self.exchange.refusals, self.recorder)
        if self.client is not None and not self.context.alone:
            try:
                with suppress(UnreachableError):
                    self.client.leave_behind(*remainder(self.module, self.tensors))
            finally:
                with suppress(UnreachableError):
                    self.client.leave()
                self.exchange.tell()
                self.recorder.event("leave")
        self.recorder.close()
