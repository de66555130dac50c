"""One exchange on one stretch of the center: the fused loop where there is one, else the method's own functions.

A fused loop stands for a pair (propose, absorb_). A method that overrides either of them, as a user's own may, is not
in the table and runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from easgd.kernels import fused
from easgd.methods import EASGD, MDownpour, Method, Slots

ELASTIC = (EASGD.propose, Method.absorb_)
PUSH = (Method.propose, Method.absorb_)
MOMENTUM = (Method.propose, MDownpour.absorb_)

Exchange = Callable[[fused.Vector, float, int], float]


def prepared(method: Method, center: Slots) -> Exchange:
    """The exchange on this stretch of the center, as a function of (message, scale, version).

    It updates the center, puts the answer in the message's place and returns Σd² of an elastic answer, 0 of another.
    A d that is not finite stays in the answer, makes the sum not finite, and is not added to the center. Other
    messages are checked by the caller.
    """
    rule = (type(method).propose, type(method).absorb_)
    if rule not in (ELASTIC, PUSH, MOMENTUM):
        return lambda m, scale, version: plain_exchange_(method, center, torch.from_numpy(m), scale, version)
    arrays = {name: slot.numpy() for name, slot in center.items()}
    x, f32 = arrays["x"], fused.f32
    if rule == ELASTIC and not method.keeps_average:
        return lambda m, scale, version: fused.elastic_(m, x, f32(scale))

    def exchange(m: fused.Vector, scale: float, version: int) -> float:
        a = method.averaging_rate(version)
        if rule == ELASTIC:
            return fused.elastic_averaged_(m, x, arrays["average"], f32(scale), f32(a))
        if a is not None:
            center["average"].lerp_(center["x"], a)
        if rule == PUSH:
            fused.add_answer_(m, x)
        else:
            assert isinstance(method, MDownpour)
            fused.momentum_answer_(m, x, arrays["velocity"], f32(method.momentum))
        return 0.0

    return exchange


def exchange_(method: Method, center: Slots, message: Tensor, scale: float, version: int) -> float:
    """One such exchange, of a contiguous float32 message."""
    return prepared(method, center)(message.numpy(), scale, version)


def moves_in_place(method: Method) -> bool:
    """Whether an exchange is `fused.move_` of the parameters and the center, and nothing else."""
    at_the_center, at_the_worker = ("propose", "absorb_", "update_"), ("local", "send", "finish")
    same = (getattr(type(method), name) is getattr(EASGD, name) for name in (*at_the_center, *at_the_worker))
    return all(same) and not method.keeps_average


def warm(method: Method) -> None:
    """Load the method's loop before the first exchange needs it: compiling one takes a second, once per machine."""
    one = torch.zeros(1).numpy()
    prepared(method, method.center_slots(torch.zeros(1)))(one, 0.0, 0)
    if moves_in_place(method):
        fused.move_(one, one.copy(), fused.f32(0.0), fused.f32(1.0))


def plain_exchange_(method: Method, center: Slots, message: Tensor, scale: float, version: int) -> float:
    """The same with the method's own functions on torch tensors."""
    d = method.propose(center, message, scale)
    elastic = method.answers_with == "difference"
    method.update_(center, d.nan_to_num(0.0, 0.0, 0.0) if elastic else d, version)
    message.copy_(d if elastic else center["x"])
    return float(torch.dot(d, d)) if elastic else 0.0
