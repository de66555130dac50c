"""One exchange on one stretch of the center: the fused loop where there is one, else the method's own functions.

A fused loop stands for a pair (propose, absorb_). A method that overrides either of them, as a user's own may, is not
in the table and runs as it is written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easgd.kernels import fused
from easgd.methods import EASGD, MDownpour, Method, Slots

ELASTIC = (EASGD.propose, Method.absorb_)
PUSH = (Method.propose, Method.absorb_)
MOMENTUM = (Method.propose, MDownpour.absorb_)


def exchange_(method: Method, center: Slots, message: Tensor, scale: float, version: int) -> float:
    """Update this stretch of the center and put the answer in the message's place; return Σd² of an elastic answer.

    A d that is not finite stays in the answer, makes the sum not finite, and is not added to the center. Other
    messages are checked by the caller, and return 0.
    """
    rule = (type(method).propose, type(method).absorb_)
    fits = all(t.dtype == torch.float32 and t.is_contiguous() for t in (message, *center.values()))
    if not fits or rule not in (ELASTIC, PUSH, MOMENTUM):
        return plain_exchange_(method, center, message, scale, version)
    m, x = message.numpy(), center["x"].numpy()
    a = method.averaging_rate(version)
    if rule == ELASTIC:
        if a is None:
            return fused.elastic_(m, x, fused.f32(scale))
        return fused.elastic_averaged_(m, x, center["average"].numpy(), fused.f32(scale), fused.f32(a))
    if a is not None:
        center["average"].lerp_(center["x"], a)
    if rule == PUSH:
        fused.add_answer_(m, x)
    else:
        assert isinstance(method, MDownpour)
        fused.momentum_answer_(m, x, center["velocity"].numpy(), fused.f32(method.momentum))
    return 0.0


def reads_in_place(method: Method) -> bool:
    """Whether an exchange needs nothing of a worker but its parameters, so that it may read them where they lie."""
    rule = (type(method).propose, type(method).absorb_)
    return rule == ELASTIC and type(method).local is Method.local and not method.keeps_average


def warm(method: Method) -> None:
    """Load the method's loop before the first exchange needs it: compiling one takes a second, once per machine."""
    exchange_(method, method.center_slots(torch.zeros(1)), torch.zeros(1), 0.0, 0)
    if reads_in_place(method):
        one = torch.zeros(1).numpy()
        fused.elastic_from_(one, one.copy(), one.copy(), fused.f32(0.0))


def plain_exchange_(method: Method, center: Slots, message: Tensor, scale: float, version: int) -> float:
    """The same with the method's own functions on torch tensors."""
    d = method.propose(center, message, scale)
    elastic = method.answers_with == "difference"
    method.update_(center, d.nan_to_num(0.0, 0.0, 0.0) if elastic else d, version)
    message.copy_(d if elastic else center["x"])
    return float(torch.dot(d, d)) if elastic else 0.0
