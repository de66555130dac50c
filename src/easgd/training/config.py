"""The settings of a training run, as flags, a file and a record in the run folder.

One flat record, declared once. A field that is None takes what fits the others (`resolved`): the paper's values on
CIFAR, values that train the digits in seconds on digits. Nothing here imports torch before it must, so that
`easgd train --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from easgd.center.guard import FACTOR, check_factor
from easgd.engines.local.control import RANKS
from easgd.errors import refuse
from easgd.methods import registry
from easgd.settings import (
    DEFAULT,
    Checked,
    Count,
    Field,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Seed,
    fields_of,
    literal,
    make,
    option,
    read_settings,
)
from easgd.worker.context import SCHEDULES

if TYPE_CHECKING:
    from easgd.methods import Method

Scalar = bool | int | float | str | None

# Titles in `easgd train --help`, in the order of a user's questions.
WHAT, STEP, LENGTH = "what", "the spring and the step", "how long (500 steps if nothing is said)"
CHANCE, MEASURE, ENGINE = "chance", "measuring and saving", "engines"
METHOD_SETTINGS = ("period", "fragments", "delay", "beta", "moving_rate", "rho", "momentum", "rate")
"""Fields that are passed to the method's constructor."""


@dataclass(frozen=True)
class Config(Checked):
    """What is trained, how, for how long, and what is measured.

    Example:
        >>> import easgd
        >>> config = easgd.Config(method="eamsgd", workers=4, engine="simulate").resolved()
        >>> config.lr, config.period, config.momentum, config.label
        (0.1, 10, 0.9, 'EAMSGD p=4 τ=10')
    """

    method: str = option(
        "the method; one of your own as package.module:ClassName", "eamsgd", group=WHAT, known=registry.names,
        plural="--methods",
    )  # fmt: skip
    workers: Count | None = option("p, the number of workers; 4, and 1 for the sequential methods", group=WHAT)
    data: str = option("data set: digits, cifar10, or any name that `easgd data list` shows", "digits", group=WHAT)
    network: str | None = option(
        "digits-conv, digits-mlp, cifar, imagenet, or a string like (1,8)L(64,1)S(10,1)", group=WHAT
    )
    engine: Literal["local", "simulate", "ray"] = option(
        "where the workers run: processes of this machine, a virtual clock, a Ray cluster", "local", group=WHAT
    )

    lr: float | None = option("η, the learning rate", group=STEP, plural="--lrs")
    period: int | Literal["auto"] | None = option(
        "τ, local steps between two exchanges; 10, and 1 for DOWNPOUR's family; auto: found from measured times",
        group=STEP, plural="--periods", kind="a whole number or auto",
    )  # fmt: skip
    fragments: int | None = option("P, parts of the vector that are exchanged in turn; 1", group=STEP)
    delay: int | None = option("k, steps after which an exchange's answer is used; 1", group=STEP)
    beta: float | None = option("β = pα, the spring of the elastic methods; 0.9", group=STEP)
    moving_rate: float | None = option("α itself, instead of β", group=STEP)
    rho: float | None = option("ρ = α/η, instead of β; the penalty of ADMM", group=STEP)
    momentum: float | None = option("δ of the methods that have one; 0.99, and 0.9 on digits", group=STEP)
    rate: float | None = option("a, the rate of the moving averages; 0.001", group=STEP)
    weight_decay: NonNegative = option("λ of λ/2‖x‖², a part of the loss", 1e-4, group=STEP)
    optimizer: Literal["paper", "sgd", "nesterov", "adam", "adamw"] = option(
        "the local step: the method's own, as in the paper, or one of torch; nesterov is SGD with momentum 0.9",
        "paper", group=STEP,
    )  # fmt: skip
    gain: Positive = option("weights start uniform in ±gain/√fan-in; 2.45 is He's", 1.0, group=STEP)
    batch: Count | None = option("images per step; 128, and 32 on digits", group=STEP)

    schedule: str | None = option(
        "who acts when; async, and sync for the methods that average in rounds", group=STEP, choices=lambda: SCHEDULES
    )
    decay: Literal["constant", "sqrt", "stagnation"] = option(
        "of η: none, η/√(1+γt), or ÷5 then ÷2 when the loss stagnates", "constant", group=STEP
    )
    gamma: NonNegative = option("γ of the decay sqrt", 1e-4, group=STEP)
    warmup: Natural = option("first steps of each worker, in which η rises to its value", 0, group=STEP)
    drop: Count | None = option("steps of each worker after which η is a tenth", group=STEP)

    steps: Count | None = option("stop after this many steps of each worker", group=LENGTH)
    epochs: Positive | None = option("stop when all workers together have seen the set this often", group=LENGTH)
    seconds: Positive | None = option("stop after this many seconds (virtual ones on simulate)", group=LENGTH)
    target: Fraction | None = option(
        "stop when the center's test error is at most this, for instance 0.21", group=LENGTH,
        remedy="write 0.21 for 21 %",
    )  # fmt: skip

    seed: Seed = option("of the data's order, dropout and the cost model's jitter", 0, group=CHANCE, plural="--seeds")
    init_seed: Seed = option("of the initial point; runs that are compared share it", 0, group=CHANCE)
    start: Literal["center", "apart"] = option(
        "where the workers start: at the center's initial point, or each at a random one of its own (simulate)",
        "center", group=CHANCE,
    )  # fmt: skip

    evaluate: Literal["auto", "live", "after"] = option(
        "when snapshots of the center are measured; auto: live if a core is free", "auto", group=MEASURE
    )
    evaluate_every: Positive | None = option(
        "seconds between two snapshots of the center; a fortieth of the run", group=MEASURE
    )
    train_subset: Count = option(
        "images of the training set on which the training loss is measured", 2000, group=MEASURE
    )
    checkpoint_every: Positive = option("real seconds between two checkpoints", 60.0, group=MEASURE)

    history: bool = option("write every exchange down, for `easgd doctor --history`", False, group=MEASURE)

    cost: str = option(
        "cost model of the engine simulate: paper-cifar, paper-imagenet or unequal", "paper-cifar", group=ENGINE
    )
    parallel: Count = option(
        "cores that the engine simulate computes gradients on; the numbers do not depend on it", 1, group=ENGINE
    )
    compression: Literal["none", "bf16", "int8", "int4", "int2", "topk"] = option(
        "of the exchange's messages, both ways", "none", group=ENGINE
    )
    guard: NonNegative = option(
        "refuse messages this many times farther from the center than usual; 0: none", FACTOR, group=ENGINE
    )
    faults: str | None = option(
        "let the faults of a plan happen, a TOML file like examples/faults.toml", group=ENGINE, metavar="PLAN"
    )
    restarts: Natural = option("how often a dead worker is started again", 0, group=ENGINE)

    settings: tuple[tuple[str, Scalar], ...] = option(
        "a setting of the method that has no flag; may be repeated. In files: a table [settings]", (), group=STEP,
        flags=("--set",), metavar="NAME=VALUE", repeat=True, kind="a table of names with a text or a number each",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check every field, then what no method or engine can use together."""
        if isinstance(self.settings, Mapping):
            object.__setattr__(self, "settings", tuple(sorted(self.settings.items())))
        super().__post_init__()
        registry.check(self.method)
        if own := [name for name, _ in self.settings if name in FIELDS]:
            raise refuse("settings", own[0], "it is a setting of the run", f"write --{own[0].replace('_', '-')}")
        if self.engine == "local" and self.workers is not None and self.workers > RANKS:
            raise refuse("workers", self.workers, f"one machine has at most {RANKS}", 'write engine="simulate"')
        if self.start == "apart" and self.engine != "simulate":
            why = f"with engine {self.engine} workers join at the center"
            raise refuse("start", "apart", why, 'write engine="simulate"')
        for name in ("warmup", "drop"):
            if (value := getattr(self, name)) and self.decay == "stagnation":
                raise refuse(name, value, "with the decay stagnation the loss says what η is", "leave one out")
        check_factor(self.guard)
        if self.compression != "none" and self.engine == "local":
            remedy = 'leave it out, or write engine="ray"'
            raise refuse("compression", self.compression, "on one machine nothing is sent", remedy)

    # resolving -------------------------------------------------------------------------------------------------

    @property
    def method_class(self) -> type[Method]:
        """The class of the method, which describes it."""
        return registry.get(self.method)

    @property
    def has_constant_rate(self) -> bool:
        """Whether η stays as it is for the whole run."""
        return self.decay == "constant" and not self.warmup and self.drop is None

    @property
    def shown_rate(self) -> str:
        """The rate as a run's first line has it."""
        rising = f" after {self.warmup} steps" if self.warmup else ""
        falling = f", a tenth of it after {self.drop} steps" if self.drop else ""
        return f"η = {self.lr:g}{rising}{falling}"

    def resolved(self) -> Config:
        """Return the settings with every default filled in; check that the method accepts them."""
        digits, method = self.data == "digits", self.method_class
        filled = replace(
            self,
            method=self._reference(),
            workers=self.workers or (1 if method.sequential else 4),
            network=self.network or {"digits": "digits-conv", "cifar10": "cifar"}.get(self.data, "imagenet"),
            lr=self.lr if self.lr is not None else method.rates["digits" if digits else "cifar"],
            momentum=self._momentum(digits),
            batch=self.batch or (32 if digits else 128),
        )
        if not (filled.steps or filled.epochs or filled.seconds or filled.target):
            filled = replace(filled, steps=500)
        if filled.evaluate_every is None and filled.seconds:
            filled = replace(filled, evaluate_every=filled.seconds / 40)
        from easgd.engines.simulate import CostModel
        from easgd.learning_rate import decay

        CostModel.preset(filled.cost)
        decay(filled.gamma, filled.warmup, filled.drop)
        made = filled.make_method()
        made.check(filled.workers or 1, filled.lr)
        if filled.start == "apart" and not made.is_elastic:
            raise refuse("start", "apart", f"{made.name} has no spring to the center", "choose easgd or eamsgd")
        schedule = filled.schedule or ("sync" if getattr(made, "sync", False) else "async")
        made.check_schedule(schedule)
        return replace(filled, period=made.period, schedule=schedule)

    def _reference(self) -> str:
        """Name the method so that the run's other processes find it."""
        name = registry.reference(self.method)
        if not name.startswith("__main__:"):
            return name
        if self.engine != "simulate":
            remedy = "move the class into a module that can be imported"
            raise refuse("method", self.method, "other processes cannot import it from the script that runs", remedy)
        return self.method

    def _momentum(self, digits: bool) -> float | None:
        if not self.method_class.takes("momentum"):
            if self.momentum is not None:
                having = [name for name in registry.names() if registry.get(name).takes("momentum")]
                raise refuse("momentum", self.momentum, f"{self.method} has none", f"choose {' or '.join(having)}")
            return None
        return self.momentum if self.momentum is not None else 0.9 if digits else 0.99

    def make_method(self) -> Method:
        """Build the method. Settings that it does not have are refused; but a method alone may be told any period."""
        method = self.method_class
        given = {name: value for name in METHOD_SETTINGS if (value := getattr(self, name)) is not None}
        given = {**method.presets, **given, **converted(method, dict(self.settings))}
        if method.sequential:
            given.pop("period", None)
        if not method.takes("momentum"):
            given.pop("momentum", None)
        if self.schedule is not None and method.takes("sync"):
            given.setdefault("sync", self.schedule == "sync")
        return method(**given)

    @property
    def steps_between(self) -> int:
        """τ as a number, to sort and to compute with: 1 where it is left out or sets itself."""
        return 1 if self.period is None or self.period == "auto" else self.period

    @property
    def label(self) -> str:
        """A short name for tables and figures: method, p and τ, fragments and delay where they are given."""
        method = self.method_class
        if method.sequential:
            return method.name
        given = {"P": self.fragments, "k": self.delay}
        more = "".join(f" {name}={value}" for name, value in given.items() if value is not None)
        return f"{method.name} p={self.workers} τ={self.period}{more}"

    def key(self, without: Collection[str]) -> tuple[tuple[str, Any], ...]:
        """The settings but some, as a key by which runs are told apart."""
        return tuple((name, getattr(self, name)) for name in FIELDS if name not in without)

    # files -----------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {**asdict(self), "settings": dict(self.settings)}

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "config") -> Config:
        """Build settings from plain data; an unknown key is refused with the nearest name."""
        return make(Config, data, where)

    @staticmethod
    def load(path: str | Path) -> Config:
        """Read a JSON or TOML file of settings."""
        return Config.from_dict(read_settings(Path(path), "config", "give a JSON or TOML file of settings"), str(path))


FIELDS: dict[str, Field] = fields_of(Config)


def converted(method: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a method in the types of its fields; unknown ones are left for it to refuse."""
    try:
        hints = get_type_hints(method)  # of the class: each base's annotations are read in its own module
    except (NameError, TypeError):  # annotations that cannot be evaluated at run time
        return {name: literal(value) for name, value in settings.items()}
    known = {name: Field(name, hint, None, {"remedy": DEFAULT}) for name, hint in hints.items()}
    return {n: known[n].convert(v) if n in known else literal(v) for n, v in settings.items()}
