"""What a method is: the mathematics of an exchange, on flat vectors.

A method knows no clock, no process and no I/O. The local step belongs to `torch.optim`; a method says what a worker
sends when τ divides its clock, what the center makes of it, and what the worker does with the answer:

    worker   message = send(replica)            at the top of the loop, when it is `due`: τ divides tⁱ
    center   d = propose(x̃, message, scale)     elementwise, so any stripe or shard of x̃ can do its part alone
             update_(x̃, d, version)             one center update, the average z first; the master's clock ticks
             answer: d, or the new x̃            (`answers_with`)
    worker   receive(answer)                    before the gradient, if the method waits for it
             … gradient and optimizer step …
             push = finish(answer)              after the step; what it returns goes to the center, unanswered

Two settings fit every method, because the center's side is elementwise:

    fragments = P    P parts of the vector are exchanged in turn, one every τ/P steps, each of them every τ steps; a
                     part has its own center clock, and all of the above happens to the part alone
    delay = k        `finish` has its answer after the k-th step, counted from the one that began with the exchange:
                     1 is the paper's; 0 says that the gradient waits for the answer (`receive`)

Synchronously, all messages meet the same x̃: every d is proposed first and their sum is absorbed once. So the
asynchronous exchange is the synchronous one with a single participant, and each rule is written once.

Any method can keep a time average z of its center (section 5; Lemmas 2 and 3), and is then evaluated there:

    z_{t+1} = (1 − a_{t+1}) z_t + a_{t+1} x̃_t,   z_0 = x̃_0,   a_{t+1} = 1/(t+1) or a constant

t is the master's clock: it counts center updates, not worker steps. z takes x̃_t, the value *before* the update, so
z_1 = x̃_0.
"""

from __future__ import annotations

import inspect
from abc import ABC, ABCMeta
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from easgd.errors import SettingError, refuse
from easgd.flat import Replica
from easgd.kernels.plain import add_, average_
from easgd.methods.checks import check_average, check_delay, check_fragments, check_period

Period = int | Literal["auto"]
"""τ, or "auto": then each worker finds it from the times it measures (`easgd.worker.period`)."""

Slots = dict[str, Tensor]
"""A worker's or the center's vectors by name. At the center `"x"` is x̃; beside it lie `velocity`, `average`."""


class UnknownSettingError(SettingError, TypeError):
    """A keyword that the method does not have."""


class _CheckedCall(ABCMeta):
    """Turns an unknown keyword into an error that says what to write instead."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]  # type: ignore[misc]
        extra = [name for name in kwargs if name not in known]
        if extra:
            name, method = extra[0], cls.__name__
            remedy = f"it takes {', '.join(known) or 'no settings'}"
            if name == "momentum" and cls.with_momentum:  # type: ignore[attr-defined]
                remedy = f"write {cls.with_momentum}(momentum={kwargs[name]})"  # type: ignore[attr-defined]
            raise UnknownSettingError(f"{name} = {kwargs[name]}: {method} has no {name}; {remedy}")
        return super().__call__(*args, **kwargs)


@dataclass(frozen=True)
class Method(ABC, metaclass=_CheckedCall):
    """Base of every method: a frozen record of settings with the pure functions of the exchange.

    A subclass describes itself in class variables; the command line, comparisons, reports, tests and documentation read
    them. What is marked as its own is not inherited: a variant of a method is another method.

    Example:
        >>> import easgd
        >>> method = easgd.EASGD(period=10)
        >>> isinstance(method, easgd.Method), method.key, method.due(20), method.due(25)
        (True, 'easgd', True, False)
    """

    key: ClassVar[str]
    """Name on the command line and in files; its own. By default the class's name in lower case."""
    name: ClassVar[str]
    """Name in tables and figures; its own. By default the class's name."""
    paper: ClassVar[str] = ""
    """Where it is described; its own."""
    order: ClassVar[int] = 100
    """Place in tables, smallest first; its own."""
    colour: ClassVar[str | None] = None
    """Colour in figures, as "#rrggbb"; None takes a free one. Its own."""
    shares_path_with: ClassVar[str | None] = None
    """Key of the method with the same x and x̃ at every step, which differs in what is measured only; its own."""
    with_momentum: ClassVar[str | None] = None
    """Class of the variant that has a momentum, for the message that this one has none; its own."""
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.1, "cifar": 0.01}
    """Learning rate where none is given: on the digits, and on CIFAR and all other data."""
    presets: ClassVar[Mapping[str, Any]] = {}
    """Values of the settings that its constructor has no default for, where none are given."""
    fixed_period: ClassVar[bool] = False
    """Whether τ has one value only."""
    synchronous: ClassVar[bool] = True
    """Whether it is defined when all workers exchange at once (the schedule "sync")."""
    waits: ClassVar[bool] = False
    """Whether the gradient needs the answer (delay 0). If not, the exchange hides behind the gradient, exactly."""
    delays: ClassVar[bool] = False
    """Whether a method that `waits` may also be given a delay ≥ 1; the others can always."""
    sends_local: ClassVar[bool] = False
    """Whether the message is what `local` returned, not looked at: it may then still be on its way from a device. A
    subclass with a `send` or `local` of its own says it anew."""
    answers_with: ClassVar[Literal["difference", "center"]] = "center"
    """What the center sends back: d, by which the worker moves too, or the new x̃."""
    sequential: ClassVar[bool] = False
    """Whether the method is for one worker, whose own variable is the center."""

    period: Period = 1
    average: float | Literal["mean"] | None = field(default=None, kw_only=True)
    """The time average z beside the center: "mean" for a = 1/(t+1), a number for a constant a, None for none."""
    fragments: int = field(default=1, kw_only=True)
    """P, the parts of the vector that are exchanged in turn."""
    delay: int = field(default=None, kw_only=True)  # type: ignore[assignment]
    """k, the steps after which the answer is used; None takes 0 where the method waits for it, else the paper's 1."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = {"key": cls.__name__.lower(), "name": cls.__name__, "paper": "", "order": 100}
        for name, value in {**own, "colour": None, "shares_path_with": None, "with_momentum": None}.items():
            if name not in cls.__dict__:
                setattr(cls, name, value)
        if {"send", "local"} & cls.__dict__.keys() and "sends_local" not in cls.__dict__:
            cls.sends_local = False

    @classmethod
    def takes(cls, setting: str) -> bool:
        """Whether a setting of a run (workers, period, or a name of the constructor's) means something to it."""
        if setting == "workers":
            return not cls.sequential
        if setting in ("period", "fragments"):
            return not (cls.sequential or cls.fixed_period)
        if setting == "delay":
            return not cls.sequential and (cls.delays or not cls.waits)
        return setting in inspect.signature(cls.__init__).parameters

    def __post_init__(self) -> None:
        """Check the settings that all methods share."""
        check_period(self)
        if self.sequential and self.period != 1:
            raise refuse("period", self.period, f"{self.name} is sequential and exchanges nothing", "leave it out")
        check_average(self.average)
        check_fragments(self)
        usual = 0 if self.waits else 1
        if self.delay is None:
            object.__setattr__(self, "delay", usual)  # type: ignore[unreachable]
        check_delay(self, usual)

    # settings that variants override -------------------------------------------------------------------------

    @property
    def delta(self) -> float:
        """The momentum δ of the *local* step (0 where the local step has none)."""
        return 0.0

    def averaging_rate(self, version: int) -> float | None:
        """a_{t+1} of center update t = `version`; None if no average is kept."""
        return 1 / (version + 1) if self.average == "mean" else self.average

    @property
    def keeps_average(self) -> bool:
        """Whether a time average z of the center is kept, and evaluated in its place."""
        return self.averaging_rate(0) is not None

    @property
    def averages_from_first_drop(self) -> bool:
        """Whether the average begins anew when the rate drops for the first time: ASGD on ImageNet (section 5)."""
        return self.sequential and self.average == "mean"

    @property
    def is_elastic(self) -> bool:
        """Whether the answer is the difference that both sides move by, not the center."""
        return self.answers_with == "difference"

    @property
    def automatic(self) -> bool:
        """Whether the period sets itself."""
        return self.period == "auto"

    def due(self, clock: int) -> bool:
        """Whether step `clock` of a worker begins with an exchange: of one fragment, the next in turn.

        Where the period sets itself, whether it does so whatever the period: at the start. The worker knows the rest.
        """
        return clock == 0 if self.period == "auto" else clock % (self.period // self.fragments) == 0

    def scale(self, lr: float, living: int, launched: int) -> float:
        """The scalar of the exchange: α for the elastic methods, 1/p for means, 1 for the others."""
        return 1.0

    def weight(self, staleness: int) -> float:
        """What `scale` is multiplied by for a message whose sender last saw the center this many updates ago."""
        return 1.0

    def check_schedule(self, schedule: str) -> None:
        """Refuse a schedule on which the method is undefined."""
        if schedule == "sync" and not self.synchronous:
            raise refuse("schedule", "sync", f"{self.name} has no synchronous form", 'write schedule="async"')
        if getattr(self, "sync", False) and schedule != "sync":
            settable = "sync" in inspect.signature(type(self).__init__).parameters
            asks = f"{self.name}{'(sync=True)' if settable else ''} exchanges all at once"
            raise refuse("schedule", schedule, asks, f'write "sync"{", or sync=False" if settable else ""}')

    def optimizer(self, params: list[Tensor], lr: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        """The local optimizer that makes this the paper's method. l₂ is in the gradient, hence in v (λ/2‖x‖²)."""
        return torch.optim.SGD(
            params, lr=lr, momentum=self.delta, nesterov=self.delta > 0, weight_decay=weight_decay, foreach=False
        )

    def check(self, workers: int, lr: float | None = None) -> None:
        """Refuse a number of workers, or a rate that follows from it, with which the method is undefined."""
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise refuse("workers", workers, "at least one worker must train", "write workers=1 or more")
        if self.sequential and workers != 1:
            raise refuse("workers", workers, f"{self.name} is sequential (p = 1)", "write workers=1")
        if lr is not None and not (lr >= 0 and lr < float("inf")):
            raise refuse("lr", lr, "the learning rate η is finite and not negative", "write lr=0.01")

    def check_size(self, size: int, tensors: int | None = None) -> None:
        """Refuse a vector of `size` elements, or a model of so many `tensors`, that has fewer than P of them."""
        have, what = (size, "elements") if tensors is None else (tensors, "tensors")
        if self.fragments > have:
            why = f"the model has {have} {what}"
            raise refuse("fragments", self.fragments, why, f"write fragments={have} or fewer")

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return the settings as used, in one line."""
        average = f"a = {self.average:g}" if isinstance(self.average, float) else self.average
        shown = [
            f"{self.name}: τ = {self.period}",
            f"{self.fragments} fragments in turn" if self.fragments > 1 else "",
            f"answers used after {self.delay} steps" if self.delay > 1 else "",
            f"average of the center: {average}" if average else "",
        ]
        return ", ".join(part for part in shown if part)

    # the worker's side ---------------------------------------------------------------------------------------

    def start(self, replica: Replica) -> Slots:
        """The worker's own vectors beside x, at its first step or after it joined."""
        return {}

    def local(self, replica: Replica) -> Tensor:
        """The paper's local variable xⁱ (may share the replica's memory)."""
        return replica.read()

    def send(self, replica: Replica, state: Slots) -> Tensor | None:
        """The message of an exchange; None asks for x̃ without changing it.

        Where the answer is x̃ it may come in the message's memory, which must then not be the replica's own.
        """
        return None

    def receive(self, replica: Replica, state: Slots, answer: Tensor) -> None:
        """Take the answer before the gradient (only with delay 0)."""

    def finish(self, replica: Replica, state: Slots, answer: Tensor) -> Tensor | None:
        """Complete the exchange after the local step (the k-th); return what the center must still add, if anything."""
        return None

    # the center's side: elementwise, on any part of the vectors ------------------------------------------------

    def center_slots(self, x: Tensor) -> Slots:
        """The center's vectors for the start value x."""
        return {"x": x.clone(), **({"average": x.clone()} if self.keeps_average else {})}

    def propose(self, center: Slots, message: Tensor, scale: float) -> Tensor:
        """The change d that one message asks for."""
        return message

    def update_(self, center: Slots, d: Tensor, version: int) -> None:
        """Update number `version` of the center, counted from 0: x̃_t enters z, then d enters x̃."""
        self.average_(center, version)
        self.absorb_(center, d)

    def average_(self, center: Slots, version: int) -> None:
        """x̃_t enters z, where one is kept."""
        if (a := self.averaging_rate(version)) is not None:
            average_(center["average"], center["x"], a)

    def absorb_(self, center: Slots, d: Tensor) -> None:
        """x̃ ← x̃ + d, or what the method makes of d."""
        add_(center["x"], d)


M = TypeVar("M", bound=Method)


def averaged(method: M, rate: float | None = None) -> M:
    """Return the same method, keeping the time average of its center: the plain mean, or a moving one of this rate.

    Example:
        >>> import easgd
        >>> easgd.averaged(easgd.EASGD(period=10)).describe(workers=4, lr=0.1)
        'EASGD: τ = 10, average of the center: mean, β = 0.9 (set), α = 0.225, ρ = 2.25'
    """
    return replace(method, average="mean" if rate is None else rate)
