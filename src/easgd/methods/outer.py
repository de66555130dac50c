"""Which outer optimizer `DiLoCo(outer=…)` names, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from easgd.errors import refuse

REMEDY = 'write outer="sgd", "nesterov" or "adam"'
DEFAULTS: dict[str, dict[str, float | None]] = {
    "sgd": {"outer_lr": 1.0, "outer_momentum": 0.0, "outer_beta2": None, "outer_eps": None},
    "nesterov": {"outer_lr": 0.7, "outer_momentum": 0.9, "outer_beta2": None, "outer_eps": None},
    "adam": {"outer_lr": 0.3, "outer_momentum": 0.9, "outer_beta2": 0.95, "outer_eps": 0.1},
}
"""Settings where none are given; those of nesterov and adam after the DiLoCo paper."""


def filled(outer: object, given: Mapping[str, float | None]) -> dict[str, Any]:
    """Return kind and settings, from `outer`, from those `given` beside it, and from the defaults of the kind."""
    said = _said(outer)
    kind = said.pop("outer")
    if kind not in DEFAULTS:
        raise refuse("outer", kind, "an outer optimizer must work on each element alone", REMEDY)
    for name, value in given.items():
        if value is not None and said.get(name, value) != value:
            raise refuse(name, value, f"outer says {said[name]:g}", f"leave {name} out")
        if value is not None and DEFAULTS[kind][name] is None:
            raise refuse(name, value, f"outer {kind} has none", 'leave it out, or write outer="adam"')
    own = {name: value for name, value in given.items() if value is not None}
    return {"outer": kind, **DEFAULTS[kind], **said, **own}


def check_outer(lr: float | None, momentum: float | None, beta2: float | None, eps: float | None) -> None:
    """Refuse values with which the outer step is undefined."""
    for name, value, example in (("outer_lr", lr, 0.7), ("outer_eps", eps, 0.1)):
        if value is not None and not (_number(value) and 0 < value < float("inf")):
            raise refuse(name, value, "it must be positive and finite", f"write {name}={example}")
    for name, value, example in (("outer_momentum", momentum, 0.9), ("outer_beta2", beta2, 0.95)):
        if value is not None and not (_number(value) and 0 <= value < 1):
            raise refuse(name, value, "it must lie in [0, 1)", f"write {name}={example}")


def numbers(*settings: float | None) -> list[float]:
    """Return settings that `filled` has given a value."""
    return [value for value in settings if value is not None]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(outer: object) -> dict[str, Any]:
    """The kind that `outer` names, and the settings that it brings."""
    if isinstance(outer, str):
        return {"outer": outer.lower()}
    if isinstance(outer, Mapping):
        return _of_mapping(outer)
    if isinstance(outer, type) and issubclass(outer, torch.optim.Optimizer):
        _elementwise(outer)
    if callable(outer) and not isinstance(outer, torch.optim.Optimizer):
        try:
            outer = outer([torch.zeros(1)])
        except Exception as error:
            raise refuse("outer", _name(outer), f"it cannot step a vector of parameters ({error})", REMEDY) from error
    if isinstance(outer, torch.optim.Optimizer):
        return _of_optimizer(outer)
    raise refuse("outer", outer, "it is no optimizer", REMEDY)


def _of_mapping(outer: Mapping[Any, Any]) -> dict[str, Any]:
    known = {"kind": "outer", "lr": "outer_lr", "momentum": "outer_momentum", "beta2": "outer_beta2"}
    known["eps"] = "outer_eps"
    said = dict(outer)
    if "betas" in said:
        betas = said.pop("betas")
        if not (isinstance(betas, tuple | list) and len(betas) == 2):
            raise refuse("outer's betas", betas, "they are two numbers", "write betas=(0.9, 0.95)")
        said["momentum"], said["beta2"] = betas
    if extra := [name for name in said if name not in known]:
        raise refuse(f"outer's {extra[0]}", said[extra[0]], f"it takes {', '.join(known)}, betas", "leave it out")
    return {"outer": "nesterov", **{known[name]: value for name, value in said.items()}}


def _of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Read one of torch's optimizers, by what it would do to a parameter of its own."""
    _elementwise(type(optimizer))
    group = optimizer.param_groups[0]
    for name in ("weight_decay", "dampening", "amsgrad", "maximize"):
        if group.get(name):
            raise refuse(f"outer's {name}", group[name], "the outer step has none", "leave it out")
    if isinstance(optimizer, torch.optim.SGD):
        kind = "nesterov" if group["nesterov"] else "sgd"
        return {"outer": kind, "outer_lr": float(group["lr"]), "outer_momentum": group["momentum"]}
    momentum, beta2 = group["betas"]
    numbers = {"outer_momentum": momentum, "outer_beta2": beta2, "outer_eps": group["eps"]}
    return {"outer": "adam", "outer_lr": float(group["lr"]), **numbers}


def _elementwise(kind: type[torch.optim.Optimizer]) -> None:
    """Refuse a class whose step is not one of the center's: it may need whole matrices or all parameters at once."""
    if not issubclass(kind, torch.optim.SGD | torch.optim.Adam):
        bound = "an outer optimizer must work on each element alone, and the center knows three"
        raise refuse("outer", kind.__name__, bound, REMEDY)


def _name(outer: object) -> str:
    return getattr(outer, "__name__", repr(outer))
