"""All that we use of Ray beyond its documented interface, in one place.

Tested with Ray 2.60.0, the only version that was run. The names below may move in others; `pyproject.toml` does not
forbid those.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray import cloudpickle
from ray.experimental import internal_kv

from easgd.runtime import time

START_SECONDS = 120.0


def last_address() -> str | None:
    """Return the address that the last `ray start` on this machine wrote down."""
    found: str | None = importlib.import_module("ray._private.utils").read_ray_address(None)
    return found


def assume_one_machine() -> None:
    """Let Ray listen on 127.0.0.1 only.

    Else it finds the address by which others reach this machine, even if told the loopback one.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False


@contextmanager
def patient_start(seconds: float = START_SECONDS) -> Iterator[None]:
    """Give a Ray that this process starts so much time until its node is known.

    Ray gives up after 30 s, a number in its code. On a busy machine, or from a cold disk, it takes longer.
    """
    services: Any = importlib.import_module("ray._private.services")
    look = services.get_node
    deadline = time.monotonic() + seconds

    def get_node(*args: Any, **options: Any) -> Any:
        while True:
            try:
                return look(*args, **options)
            except RuntimeError:  # it is not known yet
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = look


def use_token(token: str) -> None:
    """Authenticate with this token, here and in processes that this one starts.

    Ray has read the environment already, so it must read it again.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def authenticated() -> bool:
    """Whether this process shows a token: a cluster that lets it in without one lets everybody in."""
    raylet: Any = importlib.import_module("ray._raylet")
    return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)


def packed(value: Any) -> bytes:
    """Pickle as Ray does: classes of the main module travel by value."""
    data: bytes = cloudpickle.dumps(value)
    return data


def unpacked(data: bytes) -> Any:
    """Return what was packed."""
    return cloudpickle.loads(data)


class ClusterStore:
    """Values that outlive the actor that wrote them: Ray's key-value store, on the cluster's head.

    `put` returns when the head has the value. Keys belong to one run.
    """

    def __init__(self, run: str) -> None:
        self.run = run

    def put(self, key: str, value: Any) -> None:
        internal_kv._internal_kv_put(self._name(key), packed(value), overwrite=True, namespace="easgd")

    def get(self, key: str) -> Any:
        """Return the value; None if there is none."""
        found = internal_kv._internal_kv_get(self._name(key), namespace="easgd")
        return None if found is None else unpacked(found)

    def clear(self) -> None:
        internal_kv._internal_kv_del(self._name(""), del_by_prefix=True, namespace="easgd")

    def _name(self, key: str) -> str:
        return f"{self.run}/{key}"
