"""The settings of a training run, as flags, a file and a record in the run folder.

One flat record. A field that is None takes what fits the others (`resolved`): the paper's values on CIFAR, values that
train the digits in seconds on digits. It knows nothing of torch, so that `easgd train --help` answers at once.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.engines.local.control import RANKS
from easgd.errors import SettingError, refuse, unknown
from easgd.worker.context import SCHEDULES

if TYPE_CHECKING:
    from easgd.methods import Method

ENGINES = ("local", "simulate", "ray")
DECAYS = ("constant", "sqrt", "stagnation")
OPTIMIZERS = ("paper", "sgd", "adam", "adamw")
EVALUATIONS = ("auto", "live", "after")
COMPRESSIONS = ("none", "bf16", "int8")
SEQUENTIAL = ("sgd", "msgd", "asgd", "mvasgd")
MOMENTUM = ("eamsgd", "msgd", "mdownpour")
NAMES = ("easgd", "eamsgd", "downpour", "mdownpour", "adownpour", "mvadownpour", "admm", *SEQUENTIAL)


def _field(help_: str, default: Any = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_, "choices": choices})


@dataclass(frozen=True)
class Config:
    """What is trained, how, for how long, and what is measured."""

    method: str = _field("the method", "eamsgd", NAMES)
    workers: int | None = _field("p, the number of workers; 4, and 1 for the sequential methods")
    data: str = _field("data set: digits, cifar10, or any name that `easgd data list` shows", "digits")
    network: str | None = _field("digits-conv, digits-mlp, cifar, imagenet, or a string like (1,8)L(64,1)S(10,1)")
    engine: str = _field("where the workers live: local (processes), simulate (virtual clock), ray", "local", ENGINES)

    lr: float | None = _field("η, the learning rate")
    period: int | None = _field("τ, local steps between two exchanges; 10, and 1 for DOWNPOUR's family")
    beta: float | None = _field("β = pα, the spring of the elastic methods; 0.9")
    moving_rate: float | None = _field("α itself, instead of β")
    rho: float | None = _field("ρ = α/η, instead of β; the penalty of ADMM")
    momentum: float | None = _field("δ of EAMSGD, MSGD, MDOWNPOUR; 0.99, and 0.9 on digits")
    rate: float | None = _field("a, the rate of the moving averages; 0.001")
    weight_decay: float = _field("λ of λ/2‖x‖², a part of the loss", 1e-4)
    optimizer: str = _field("the local step: the paper's SGD, or another optimizer of torch", "paper", OPTIMIZERS)
    gain: float = _field("weights start uniform in ±gain/√fan-in; 2.45 is He's", 1.0)
    batch: int | None = _field("images per step; 128, and 32 on digits")

    schedule: str = _field("who acts when", "async", SCHEDULES)
    decay: str = _field("of η: none, η/√(1+γt), or ÷5 then ÷2 when the loss stagnates", "constant", DECAYS)
    gamma: float = _field("γ of the decay sqrt", 1e-4)

    steps: int | None = _field("stop after this many steps of each worker")
    epochs: float | None = _field("stop when all workers together have seen the set this often")
    seconds: float | None = _field("stop after this many seconds (virtual ones on simulate)")
    target: float | None = _field("stop when the center's test error is at most this, for instance 0.21")

    seed: int = _field("of the data's order, dropout and the cost model's jitter", 0)
    init_seed: int = _field("of the initial point; runs that are compared share it", 0)

    evaluate: str = _field(
        "when snapshots of the center are measured; auto: live if a core is free", "auto", EVALUATIONS
    )
    evaluate_every: float | None = _field("seconds between two snapshots of the center; a fortieth of the run")
    train_subset: int = _field("images of the training set on which the training loss is measured", 2000)
    checkpoint_every: float = _field("real seconds between two checkpoints", 60.0)

    cost: str = _field("cost model of the engine simulate: paper-cifar or paper-imagenet", "paper-cifar")
    parallel: int = _field("cores that the engine simulate computes gradients on; the numbers do not depend on it", 1)
    compression: str = _field("of the exchange's messages, both ways", "none", COMPRESSIONS)
    restarts: int = _field("how often a dead worker is started again", 0)

    def __post_init__(self) -> None:
        """Refuse what no method or engine can use."""
        for name, info in FIELDS.items():
            value, choices = getattr(self, name), info["choices"]
            if choices and value not in choices:
                raise unknown(name, str(value), choices)
            if isinstance(value, float) and not math.isfinite(value):
                raise refuse(name, value, "it must be finite", "leave it out for the default")
        for name in ("steps", "epochs", "seconds", "evaluate_every", "checkpoint_every", "batch", "train_subset"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise refuse(name, value, "it must be positive", "leave it out for the default")
        for name, low in (("workers", 1), ("parallel", 1), ("restarts", 0), ("seed", 0), ("init_seed", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise refuse(name, value, f"it must be at least {low}", f"write {name}={low}")
        for name in ("seed", "init_seed"):
            if not getattr(self, name) < 1 << 63:
                raise refuse(name, getattr(self, name), "it must be below 2⁶³", f"write {name}=0")
        if self.engine == "local" and self.workers is not None and self.workers > RANKS:
            raise refuse("workers", self.workers, f"one machine has at most {RANKS}", 'write engine="simulate"')
        if self.weight_decay < 0 or self.gamma < 0:
            name = "weight_decay" if self.weight_decay < 0 else "gamma"
            raise refuse(name, getattr(self, name), "it must be at least 0", "leave it out for the default")
        if not self.gain > 0:
            raise refuse("gain", self.gain, "it must be positive", "leave it out for the default")
        if self.compression != "none" and self.engine == "local":
            remedy = 'leave it out, or write engine="ray"'
            raise refuse("compression", self.compression, "on one machine nothing is sent", remedy)
        if self.target is not None and not 0 < self.target < 1:
            raise refuse("target", self.target, "a test error lies between 0 and 1", "write target=0.21 for 21 %")

    # resolving -------------------------------------------------------------------------------------------------

    def resolved(self) -> Config:
        """Return the settings with every default filled in; check that the method accepts them."""
        digits = self.data == "digits"
        sequential = self.method in SEQUENTIAL
        filled = replace(
            self,
            workers=self.workers or (1 if sequential else 4),
            network=self.network or {"digits": "digits-conv", "cifar10": "cifar"}.get(self.data, "imagenet"),
            lr=self.lr if self.lr is not None else (DIGITS_RATES if digits else CIFAR_RATES)[self.method],
            momentum=self._momentum(digits),
            batch=self.batch or (32 if digits else 128),
        )
        if not (filled.steps or filled.epochs or filled.seconds or filled.target):
            filled = replace(filled, steps=500)
        if filled.evaluate_every is None and filled.seconds:
            filled = replace(filled, evaluate_every=filled.seconds / 40)
        from easgd.engines.simulate import CostModel

        CostModel.preset(filled.cost)
        made = filled.make_method()
        made.check(filled.workers or 1, filled.lr)
        return replace(filled, period=made.period)

    def _momentum(self, digits: bool) -> float | None:
        if self.method not in MOMENTUM:
            if self.momentum is not None:
                raise refuse("momentum", self.momentum, f"{self.method} has none", f"choose {' or '.join(MOMENTUM)}")
            return None
        return self.momentum if self.momentum is not None else 0.9 if digits else 0.99

    def make_method(self) -> Method:
        """Build the method. Settings that it does not have are refused; but a method alone may be told any period."""
        from easgd.methods import METHODS

        cls = METHODS[self.method]
        given = {k: getattr(self, k) for k in ("period", "beta", "moving_rate", "rho", "rate")}
        given = {k: v for k, v in given.items() if v is not None}
        if self.method in MOMENTUM and self.momentum is not None:
            given["momentum"] = self.momentum
        if self.method in SEQUENTIAL:
            given.pop("period", None)
        if self.method in ("easgd", "eamsgd") and self.schedule == "sync":
            given["sync"] = True
        if self.method == "admm":
            given.setdefault("rho", 1.0)
        return cls(**given)

    @property
    def label(self) -> str:
        """A short name for tables and figures: method, p and τ."""
        from easgd.methods import METHODS

        name = METHODS[self.method].name
        return name if self.method in SEQUENTIAL else f"{name} p={self.workers} τ={self.period}"

    # files -----------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "config") -> Config:
        """Build settings from plain data; an unknown key is refused with the nearest name."""
        values: dict[str, Any] = {}
        for name, value in data.items():
            if name.replace("-", "_") not in FIELDS:
                raise unknown(f"key in {where}", str(name), FIELDS)
            values[name.replace("-", "_")] = convert(name.replace("-", "_"), value)
        return Config(**values)

    @staticmethod
    def load(path: str | Path) -> Config:
        """Read a JSON or TOML file of settings."""
        path = Path(path)
        try:
            text = path.read_text()
            data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise refuse("config", path, why, "give a JSON or TOML file of settings") from error
        except ValueError as error:
            raise refuse("config", path, f"it cannot be read ({error})", "mend it") from error
        if not isinstance(data, dict):
            raise refuse("config", path, "it holds no table of settings", 'write method = "eamsgd"')
        return Config.from_dict(data, str(path))


# Per method, from a small grid on digits; on CIFAR the middle rates of the paper's tables.
DIGITS_RATES = {
    "easgd": 0.2, "eamsgd": 0.1, "downpour": 0.1, "mdownpour": 0.01, "adownpour": 0.1, "mvadownpour": 0.1,
    "admm": 0.1, "sgd": 0.2, "msgd": 0.05, "asgd": 0.2, "mvasgd": 0.2,
}  # fmt: skip
CIFAR_RATES = {
    "easgd": 0.01, "eamsgd": 0.005, "downpour": 0.001, "mdownpour": 1e-5, "adownpour": 0.001, "mvadownpour": 0.001,
    "admm": 0.01, "sgd": 0.01, "msgd": 0.0005, "asgd": 0.01, "mvasgd": 0.01,
}  # fmt: skip

KINDS = {f.name: str(f.type).replace(" | None", "") for f in fields(Config)}
"""The type of each field: "str", "int" or "float"."""

FIELDS: dict[str, dict[str, Any]] = {f.name: dict(f.metadata) for f in fields(Config)}


def convert(name: str, value: Any) -> Any:
    """StepInProgress a value of a file or a flag into the field's type, or refuse it."""
    if value is None or (KINDS[name] == "str" and isinstance(value, str)):
        return value
    try:
        if isinstance(value, bool) or KINDS[name] == "str":
            raise ValueError
        number = float(value)
        if KINDS[name] == "int":
            if number != int(number):
                raise ValueError
            return int(number)
        return number
    except (TypeError, ValueError, OverflowError):
        kind = {"int": "a whole number", "float": "a number", "str": "a text"}[KINDS[name]]
        raise SettingError(f"{name} = {value!r}: it must be {kind}; see `easgd train --help`") from None
