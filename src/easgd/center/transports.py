"""Finds the center of a run: a small table of transports, each owned by an engine.

A worker learns from its environment where its center lives, as `scheme:address`; the engine that owns the scheme makes
the client. Engines are imported by name when they are needed, so nothing below them imports them, and Ray is imported
only by a worker of a Ray run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from easgd.errors import unknown

if TYPE_CHECKING:
    from easgd.center.client import CenterClient, JoinRequest

# scheme -> the module whose `connect(address, request)` returns the engine's CenterClient
TRANSPORTS = {"local": "easgd.engines.local.client", "ray": "easgd.engines.ray.connect"}


def connect(center: str, request: JoinRequest) -> CenterClient:
    """Return the client of the center at `scheme:address` for one worker; `CenterClient.join` enters the run."""
    scheme, _, address = center.partition(":")
    if scheme not in TRANSPORTS:
        raise unknown("transport", scheme, TRANSPORTS)
    client: CenterClient = importlib.import_module(TRANSPORTS[scheme]).connect(address, request)
    return client
