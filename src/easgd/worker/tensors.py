"""Which tensors of a model are exchanged, and how a center's vector becomes a state dict again."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from easgd.dtensors import is_sharded
from easgd.errors import SettingError, refuse
from easgd.methods import Method
from easgd.methods.momentum import LocalMomentum

SCHEDULE_FREE = "give one with an average of its own, as schedulefree.AdamWScheduleFree or SGDScheduleFree"


def exchanged(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, averaged_buffers: bool, include_frozen: bool = False
) -> dict[str, Tensor]:
    """Name the tensors that are tied to the center: trainable parameters, once each, and float buffers if wished.

    A parameter that the optimizer moves but the model does not know, as of a loss of its own, is named by its place.
    """
    named: dict[str, Tensor] = {
        # A frozen parameter that is sharded has no other way into a whole state dict of the center.
        _plain(name): p
        for name, p in model.named_parameters()
        if p.requires_grad or include_frozen or is_sharded(p)
    }
    known = {id(p) for p in named.values()}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            if id(p) not in known and (p.requires_grad or include_frozen):
                named[f"optimizer.{g}.{i}"] = p
                known.add(id(p))
    if averaged_buffers:
        named.update({_plain(name): b for name, b in model.named_buffers() if b.is_floating_point()})
    if not named:
        raise SettingError("the model has no trainable parameter; attach it before freezing, or unfreeze some")
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            raise SettingError(f"{name} has dtype {tensor.dtype}; only floating-point parameters can be averaged")
    return named


def check_tied(model: nn.Module, optimizer: torch.optim.Optimizer, tied: set[int], optimized: int) -> int:
    """Refuse parameters that began to train after `attach`: they would not be tied to the center, in silence.

    A group that is added later may have parameters of the model that were tied from the start. Return how many
    parameters the optimizer has.
    """
    now = sum(len(group["params"]) for group in optimizer.param_groups)
    if now != optimized:
        added = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in tied]
        if added:
            raise SettingError(
                f"the optimizer has {now} parameters, {optimized} when attached, and {len(added)} of them are not tied "
                "to the center; write easgd.attach(…, include_frozen=True) if the model had them frozen, else call "
                "easgd.attach after add_param_group"
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in tied:
            raise SettingError(
                f"{name} was frozen when attached and trains now, untied to the center; "
                "write easgd.attach(…, include_frozen=True)"
            )
    return now


def full_state(model: nn.Module, tensors: dict[str, Tensor], values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's state dict with the exchanged tensors at `values`; tied names get the same value."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    out = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        name = names.get(id(tensor))
        value = values.get(name, tensor) if name is not None else tensor
        out[_plain(key)] = value.detach().clone()
    return out


def remainder(model: nn.Module, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What a state dict has beside the exchanged tensors: other tensors, and second names of tied ones."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    rest: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        name = names.get(id(tensor))
        if name is None:
            rest[_plain(key)] = tensor.detach().clone()
        elif name != _plain(key):
            aliases[_plain(key)] = name
    return rest, aliases


def bare(model: nn.Module) -> nn.Module:
    """Return the user's own module: what DistributedDataParallel wraps has the names that a state dict should have."""
    inner: nn.Module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return inner


def _plain(name: str) -> str:
    """A compiled module is the same model: torch.compile's prefix is not part of a parameter's name."""
    return name.replace("_orig_mod.", "")


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that takes the step: accelerate and Lightning hand out wrappers that have no hooks."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if hasattr(optimizer, "base") and callable(getattr(optimizer, "train", None)):
        raise refuse("optimizer", type(optimizer).__name__, "its average cannot be followed", SCHEDULE_FREE)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise refuse("optimizer", type(optimizer).__name__, "it is no torch.optim.Optimizer", "give the one that steps")
    return optimizer


def with_momentum_of(optimizer: torch.optim.Optimizer, method: Method) -> Method:
    """Return the method with the optimizer's momentum δ, where the method has not been given one of its own.

    δ belongs to the local step, and so to the optimizer; only a contradiction is refused.
    """
    if not isinstance(method, LocalMomentum) or not isinstance(optimizer, torch.optim.SGD):
        return method
    if method.momentum == 0:
        return method  # δ = 0: a plain local step, whatever the optimizer adds to it
    for group in optimizer.param_groups:
        if not group["nesterov"] or not (method.default_momentum or method.momentum == group["momentum"]):
            have = f"momentum={group['momentum']}, nesterov={group['nesterov']}"
            remedy = f"write SGD(…, momentum={method.momentum}, nesterov=True)"
            raise refuse("momentum", method.momentum, f"the optimizer has {have}", remedy)
        method = dataclasses.replace(method, momentum=float(group["momentum"]))
    return method
