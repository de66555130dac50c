"""Ray's own calls as the way to a run's coordinator and to the shards of its center: always there, not the fastest.

Only bytes, numbers and arrays are passed, and the user's method once. Ray knows who may call (its token), encrypts if
it is told to, and restarts what has died; a call that fails may have been executed or not.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from torch import Tensor

from easgd.engines.ray.calls import ray
from easgd.engines.ray.ledger import Reached
from easgd.engines.ray.messages import LinkError, Reply, Request
from easgd.errors import SettingError, UnreachableError
from easgd.runtime import time

PAUSE = 0.05
TRANSFER_SECONDS = 1800.0
"""How long states may be under way that shards have answered with: a slow link is not a shard that does not answer.
Ray raises sooner where a machine is gone."""


def numpy_of(slots: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Vectors as Ray carries them best."""
    return {name: vector.numpy() for name, vector in slots.items()}


def tensors_of(slots: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """And back: what Ray hands out is read-only, so a copy."""
    return {name: torch.from_numpy(vector.copy()) for name, vector in slots.items()}


class CoordinatorProxy:
    """The run's coordinator, whose methods are called as if it were here: a call is repeated while Ray restarts it."""

    def __init__(self, run: str) -> None:
        try:
            self.actor = ray.get_actor("coordinator", namespace=run)
        except ValueError as error:
            raise SettingError(
                f"run {run!r} is not alive on this cluster; `easgd launch --ray …` starts one"
            ) from error

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self.actor, method))

    def _call(self, method: Any, *args: Any, seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while True:
            try:
                return ray.get(method.remote(*args), timeout=max(1.0, end - time.monotonic()))
            except (RayActorError, GetTimeoutError) as error:
                if time.monotonic() > end:
                    raise UnreachableError(f"the run's coordinator does not answer ({type(error).__name__})") from error
                time.sleep(PAUSE)


class ActorLink:
    """One shard, by actor calls."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._answer: Any = None

    def send(self, request: Request, payload: Tensor | None) -> None:
        """Hand the call to Ray, which copies what is large."""
        self._answer = self.actor.exchange.remote(tuple(request), None if payload is None else payload.numpy())

    def receive(self, seconds: float, into: Tensor) -> tuple[Reply, int]:
        """Wait for the reply; copy the answer."""
        try:
            head, payload = ray.get(self._answer, timeout=seconds)
        except RayError as error:  # also GetTimeoutError
            raise LinkError(type(error).__name__) from error
        finally:
            self._answer = None
        if payload is None:
            return Reply(*head), 0
        np.copyto(into.numpy()[: payload.size], payload)
        return Reply(*head), payload.size

    def close(self) -> None:
        """Nothing to let go of."""


def joint(states: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """The vectors of all shards of a snapshot, end to end."""
    parts = [tensors_of(state["slots"]) for state in states]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def joint_clocks(states: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The clock of each fragment: a shard that has no part of it has not counted its updates."""
    return [list(max(clocks)) for clocks in zip(*(state["clocks"] for state in states), strict=True)]


def snapshot(shards: Sequence[Any], center: str, seconds: float = 30.0) -> list[dict[str, Any]]:
    """The states of a center's shards at one moment: an exchange is in all of them or in none.

    First every shard stops letting exchanges begin and says how far each worker has come; those that are behind
    another shard catch up, and then all copy. Several snapshots may be under way, each by its ticket: one that ends
    must not let exchanges go on that another one still holds up. Raises `UnreachableError` if a shard does not answer
    within so many seconds; what it answers may take longer to come.
    """
    ticket = secrets.token_hex(8)
    try:
        target: Reached | None = None
        if len(shards) > 1:
            held = ray.get([s.hold.remote(center, ticket) for s in shards], timeout=seconds)
            target = {}
            for reached in held:
                for key, at in reached.items():
                    target[key] = max(at, target.get(key, at))
        taking = [s.take.remote(center, target, ticket) for s in shards]
        _, unanswered = ray.wait(taking, num_returns=len(taking), timeout=seconds, fetch_local=False)
        if unanswered:
            raise GetTimeoutError(f"{len(unanswered)} of {len(taking)} shards")
        states: list[dict[str, Any]] = ray.get(taking, timeout=TRANSFER_SECONDS)
    except RayError as error:
        for s in shards:
            s.release.remote(center, ticket)  # nobody waits for that: without it, the hold lapses
        raise UnreachableError(f"a shard of the center does not answer ({type(error).__name__})") from error
    return states
