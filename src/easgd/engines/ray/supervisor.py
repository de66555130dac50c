"""Saves a run's center at intervals, and restores a shard that Ray had to restart from what was saved.

The launcher's own folder is the one place where a run is saved: no other machine's disk is needed.

    <out>/state.safetensors            all shards at one moment, with what a worker must bring to fit
    <out>/state.previous.safetensors   the one before
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from ray.exceptions import RayError
from safetensors.torch import load as unpack_tensors
from torch import Tensor

from easgd import checkpoint
from easgd.center.layout import Layout
from easgd.engines.ray import actor_link
from easgd.engines.ray.actor_link import numpy_of, tensors_of
from easgd.engines.ray.calls import ray
from easgd.engines.ray.membership import JOINED
from easgd.engines.ray.private import unpacked
from easgd.errors import SettingError, UnreachableError
from easgd.launch.event_log import EventLog
from easgd.launch.output import say
from easgd.runtime import threading, time

POLL_SECONDS = 0.25
SAVE_PAUSE = 9.0
"""Pause after a save, beside what it took: over a slow link saving may not have more than a tenth of the time."""
CALL_SECONDS = 10.0
CENTER = "center"
STATE, PREVIOUS, NEW = "state.safetensors", "state.previous.safetensors", "state.new.safetensors"


class RayCenterReader:
    """The center as the process that started the run sees it; a `CenterView`."""

    def __init__(self, supervisor: Supervisor, center: str = CENTER) -> None:
        self.supervisor, self.center = supervisor, center
        self.clocks: list[list[int]] = []

    @property
    def version(self) -> int:
        """The master's clock at the last snapshot."""
        return sum(version for version, _ in self.clocks)

    def joined(self) -> list[int]:
        """The ranks that are in the run now."""
        return members(self.supervisor.opened().get(self.center, {"states": {}}))

    def snapshot(self) -> dict[str, Tensor] | None:
        """All vectors at one moment; None before the first worker came, and while a shard is being restarted."""
        membership = self.supervisor.opened().get(self.center)
        if membership is None:
            return None
        try:
            states = actor_link.snapshot(
                self.supervisor.shard_actors[: len(membership["bounds"])], self.center, seconds=20.0
            )
        except UnreachableError:
            return None
        self.clocks = actor_link.joint_clocks(states)
        return actor_link.joint(states)

    def named(self, slots: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is measured, z where there is one, else x̃, under the model's names."""
        layout = Layout.from_json(self.supervisor.opened()[self.center]["header"]["layout"])
        return layout.split(slots.get("average", slots["x"]))


def joint(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The vectors of all shards, end to end."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def members(membership: dict[str, Any]) -> list[int]:
    """The ranks that are in the run, of a membership as plain data."""
    return sorted(rank for rank, what in membership["states"].items() if what == JOINED)


class Supervisor:
    """Polls the coordinator and the shards, on a thread of its own."""

    def __init__(
        self, coordinator: Any, shard_actors: list[Any], out: Path, event_log: EventLog, interval: float
    ) -> None:
        self.coordinator, self.shard_actors = coordinator, shard_actors
        self.out, self.event_log, self.interval = out, event_log, interval
        self.copy: dict[str, Any] = {"held": {}, "memberships": {}, "restarts": 0, "silent": []}
        """The coordinator's state when it was last asked."""
        self.methods: dict[str, Any] = {}
        self._saved: dict[str, float] = {}
        self._save_seconds = 0.0  # that the last one took
        self._answered: dict[tuple[str, int], float] = {}  # when a shard was last seen with its value
        self._asking = threading.RLock()
        self._ended = threading.Event()
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="easgd-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(actor_link.TRANSFER_SECONDS)

    def _work(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                self.check()
            except (RayError, UnreachableError):
                continue  # something is being restarted
            except Exception as error:
                self._warn(f"the center is not being kept: {type(error).__name__}: {error}")

    def check(self) -> None:
        """Copy the coordinator's state, restore shards that were restarted, save the center if it is due."""
        self.renew()
        for center, membership in self.opened().items():
            if center not in self.methods:
                method = ray.get(self.coordinator.method.remote(center), timeout=CALL_SECONDS)
                if method is None:
                    continue  # a coordinator that was killed before it had stored it; its worker tells it again
                self.methods[center] = unpacked(method)
            self._restore_shards(center, membership)
        pause = max(self.interval, SAVE_PAUSE * self._save_seconds)
        due = [c for c in self.opened() if time.monotonic() - self._saved.get(c, -1e9) > pause]
        if due:
            self.save()

    def opened(self) -> dict[str, dict[str, Any]]:
        """The centers that have a value, as the coordinator knew them last."""
        memberships = self.copy["memberships"].items()
        return {center: membership for center, membership in memberships if membership["opened"]}

    def renew(self) -> None:
        """Ask the coordinator for its state; also called by the launcher, and the older answer must not come last."""
        with self._asking:
            copy = ray.get(self.coordinator.dump.remote(), timeout=CALL_SECONDS)
            if copy is None:
                return
            if copy["restarts"] > self.copy["restarts"]:
                self._tell("the coordinator was restarted and has its list of members back")
            self.copy = copy

    def _restore_shards(self, center: str, membership: dict[str, Any]) -> None:
        for k in range(len(membership["bounds"])):
            if center in ray.get(self.shard_actors[k].versions.remote(), timeout=CALL_SECONDS):
                self._answered[center, k] = time.monotonic()
                continue
            if center not in self._saved:
                continue
            saved = load_state(self.out)["centers"][center]
            state = {**saved["shards"][k], "slots": numpy_of(saved["shards"][k]["slots"])}
            codec, method = membership["header"]["compression"], self.methods[center]
            call = self.shard_actors[k].restore.remote(
                center, method, codec, state, membership["serial"], members(membership), membership["dead"],
                membership["header"]["guard"], membership["bounds"][k][0], membership["header"].get("history", ""),
            )  # fmt: skip
            ray.get(call, timeout=60.0)
            # The copy may be older than what the shard had heard before it died.
            ray.get(self.coordinator.announce.remote(center), timeout=60.0)
            lost = max(0.0, self._answered.get((center, k), self._saved[center]) + POLL_SECONDS - self._saved[center])
            self._tell(f"shard {k} was restarted from version {state['version']}; at most {lost:.1f} s of it are lost")

    def save(self) -> None:
        """Save all centers as they are at one moment each."""
        start, centers = time.monotonic(), {}
        for center, membership in self.opened().items():
            states = actor_link.snapshot(self.shard_actors[: len(membership["bounds"])], center)
            shards = [{**state, "slots": tensors_of(state["slots"])} for state in states]
            centers[center] = {"header": membership["header"], "bounds": membership["bounds"], "shards": shards}
        now = time.monotonic()
        self._save_seconds = now - start
        path = self.out / STATE
        try:
            # Both names stay what they are until the new file is whole: a full disk costs this one alone.
            checkpoint.save(new := self.out / NEW, {"centers": centers})
            if path.exists():
                os.replace(path, self.out / PREVIOUS)
            os.replace(new, path)
        except OSError as error:
            self._warn(f"the center could not be saved in {path}: {error}")
            return
        self._saved.update(dict.fromkeys(centers, now))

    def final(self, center: str = CENTER) -> dict[str, Tensor] | None:
        """The center as named tensors: as it is now, or, if a shard is gone for good, as it was saved last."""
        membership = self.opened().get(center)
        if membership is None:
            return None
        reader = RayCenterReader(self, center)
        slots = reader.snapshot()
        if slots is None:
            if center not in self._saved:
                return None
            age = time.monotonic() - self._saved[center]
            say(f"warning: a shard of the center is gone; what is left is the checkpoint of {age:.0f} s ago")
            slots = joint([shard["slots"] for shard in load_state(self.out)["centers"][center]["shards"]])
        values = reader.named(slots)
        rest = unpack_tensors(membership["rest"]) if membership["rest"] else {}
        return {**rest, **{alias: values[name].clone() for alias, name in membership["aliases"].items()}, **values}

    def _tell(self, what: str) -> None:
        self.event_log.write("restored", None, what)
        say(what)

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            say(f"warning: {what}")


def load_state(folder: Path) -> dict[str, Any]:
    """Load the last state in a run's folder that is whole."""
    try:
        return checkpoint.load(folder / STATE)
    except (SettingError, FileNotFoundError):
        if not (folder / PREVIOUS).exists():
            raise
        return checkpoint.load(folder / PREVIOUS)


def saved_center(folder: str | os.PathLike[str], center: str = CENTER) -> dict[str, Any]:
    """The center that a run has saved in its folder, as `easgd.attach(…, saved=…)` takes it to go on from there."""
    shards = load_state(Path(folder))["centers"][center]["shards"]
    clocks = actor_link.joint_clocks(shards)
    version = sum(updates for updates, _ in clocks)
    return {"slots": joint([shard["slots"] for shard in shards]), "version": version, "clocks": clocks}
