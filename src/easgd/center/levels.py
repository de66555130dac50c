"""The spring twice: workers of one machine share a center in its memory, machines' centers are tied to the run's.

    worker    d = α₁(xⁱ − x_m);  x_m += d, xⁱ −= d      every τ steps, inside the machine
    machine   D = α₂(x_m − x̃);   x̃ += D,   x_m −= D     when each of its workers has exchanged T times, over the network

With β, α₁ = β/(workers of the machine) and α₂ = β·(workers of the machine)/(all workers), which is β/(machines) where
all have as many: the α of a level add up to β. A moving rate that is given is that of both levels.

A machine sends one vector and receives one for T exchanges of each of its workers: what crosses the network does not
grow with the workers of a machine. The answer comes while the workers go on: D is subtracted from what x_m is then, as
a worker subtracts d after its step.
"""

from __future__ import annotations

from easgd.errors import refuse
from easgd.methods import Method


def machine_of(rank: int, machines: int) -> int:
    """The machine on which a rank trains: ranks are dealt out in turn."""
    return rank % machines


def upward_due(updates: int, children: int, period: int) -> bool:
    """Whether a machine's center that was updated so often since its last exchange must exchange again."""
    return updates >= period * max(1, children)


def upward_rate(method: Method, children: int, workers: int) -> float:
    """α₂ of a machine with so many of all the run's workers.

    >>> from easgd.methods import EASGD
    >>> upward_rate(EASGD(beta=0.8), 2, 8), upward_rate(EASGD(moving_rate=0.3), 2, 8)
    (0.2, 0.3)
    """
    alpha = method.scale(0.0, max(children, workers, 1), workers)
    return alpha if getattr(method, "moving_rate", None) is not None else min(1.0, children * alpha)


def check_levels(method: Method) -> None:
    """Refuse a method whose spring cannot be had twice."""
    if not method.is_elastic or getattr(method, "sync", False):
        what = f"{method.name}(sync=True)" if method.is_elastic else method.name
        raise refuse("method", what, "machines with a center each are tied by a spring", "write easgd.EASGD(period=10)")
    if getattr(method, "rho", None) is not None:
        why = "a machine's center has no learning rate to make α = ηρ of"
        raise refuse("rho", method.rho, why, "give beta or moving_rate")  # type: ignore[attr-defined]
    if method.fragments > 1:
        raise refuse("fragments", method.fragments, "a machine exchanges its whole vector", "write fragments=1")
