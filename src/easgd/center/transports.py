"""Finds the center of a run: a small table of transports, each owned by an engine.

A worker learns from its environment where its center lives, as `scheme:address`; the engine that owns the scheme makes
the client. Engines are imported by name when they are needed, so nothing below them imports them, and Ray is imported
only by a worker of a Ray run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from easgd.errors import unknown

if TYPE_CHECKING:
    from torch import Tensor

    from easgd.center.client import CenterClient, JoinRequest
    from easgd.center.layout import Layout

# scheme -> the module whose `connect(address, request)` returns the engine's CenterClient; where workers may be groups,
# its `read(address, name)` returns what a center is made of and its value.
TRANSPORTS = {
    "local": "easgd.engines.local.client",
    "ray": "easgd.engines.ray.connect",
    "collective": "easgd.engines.collective.client",
}


def connect(center: str, request: JoinRequest) -> CenterClient:
    """Return the client of the center at `scheme:address` for one worker; `CenterClient.join` enters the run."""
    module, address = _find(center)
    client: CenterClient = module.connect(address, request)
    return client


def read(center: str, name: str) -> tuple[Layout, dict[str, Tensor]]:
    """Read one of a run's centers without taking part in it: its layout, and what is evaluated as named tensors."""
    module, address = _find(center)
    found: tuple[Layout, dict[str, Tensor]] = module.read(address, name)
    return found


def _find(center: str) -> tuple[Any, str]:
    scheme, _, address = center.partition(":")
    if scheme not in TRANSPORTS:
        raise unknown("transport", scheme, TRANSPORTS)
    return importlib.import_module(TRANSPORTS[scheme]), address
