"""Which methods an exchange can be one fused loop for, instead of the method's own functions on torch tensors.

A loop stands for what `propose`, `update_` and `absorb_` do together. A method that overrides any of the three, as a
user's own may, is not in the table and runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from easgd.kernels import fused
from easgd.methods import EASGD, MDownpour, Method, Slots

ELASTIC = (EASGD.propose, Method.update_, Method.absorb_)
PUSH = (Method.propose, Method.update_, Method.absorb_)
MOMENTUM = (Method.propose, Method.update_, MDownpour.absorb_)

FusedExchange = Callable[[fused.Vector, float, int], float | None]
"""(message, scale, version) -> Σd² of an elastic answer, else None; the answer takes the message's place."""


def fused_exchange(method: Method, slots: Slots) -> FusedExchange | None:
    """Return the loop for this stretch of the center, or None if the method has none.

    A d that is not finite stays in the answer, makes the sum not finite, and is not added to the center.
    """
    rule = (type(method).propose, type(method).update_, type(method).absorb_)
    if rule not in (ELASTIC, PUSH, MOMENTUM) or any(v.dtype != torch.float32 for v in slots.values()):
        return None
    arrays = {name: slot.numpy() for name, slot in slots.items()}
    x, f32 = arrays["x"], fused.f32
    if rule == ELASTIC and not method.keeps_average:
        return lambda m, scale, version: fused.elastic_(m, x, f32(scale))

    def exchange(m: fused.Vector, scale: float, version: int) -> float | None:
        a = method.averaging_rate(version)
        if rule == ELASTIC:
            return fused.elastic_averaged_(m, x, arrays["average"], f32(scale), f32(a))
        if a is not None:
            slots["average"].lerp_(slots["x"], a)
        if rule == PUSH:
            fused.add_answer_(m, x)
        else:
            assert isinstance(method, MDownpour)
            fused.momentum_answer_(m, x, arrays["velocity"], f32(method.momentum))
        return None

    return exchange


def moves_in_place(method: Method) -> bool:
    """Whether an exchange is `fused.move_` of the parameters and the center, and nothing else."""
    at_the_center, at_the_worker = ("propose", "absorb_", "update_"), ("local", "send", "finish")
    same = (getattr(type(method), name) is getattr(EASGD, name) for name in (*at_the_center, *at_the_worker))
    return all(same) and not method.keeps_average


def warm(method: Method) -> None:
    """Load the method's loop before the first exchange needs it: compiling one takes a second, once per machine."""
    one = torch.zeros(1).numpy()
    if (loop := fused_exchange(method, method.center_slots(torch.zeros(1)))) is not None:
        loop(one, 0.0, 0)
    if moves_in_place(method):
        fused.move_(one, one.copy(), fused.f32(0.0), fused.f32(1.0))
