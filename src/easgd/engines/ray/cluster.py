"""Joining a Ray cluster, or starting Ray on this machine alone, where no other machine can reach it."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from easgd.engines.ray import private
from easgd.errors import SettingError, refuse
from easgd.launch.output import say
from easgd.launch.scratch import make_scratch, remove_scratch
from easgd.machine import usable_cores

CONNECT_SECONDS = 5.0
STORE_BYTES = (256 << 20, 4 << 30)
"""The least and the most shared memory for messages in a Ray that this process starts."""


@dataclass
class Cluster:
    """A connection to Ray."""

    address: str
    own: bool
    """Whether this process started Ray, and ends it."""
    folder: Path | None = None

    def nodes(self) -> list[dict[str, Any]]:
        """The living nodes, this process's own first."""
        here = ray.get_runtime_context().get_node_id()
        return sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: (n["NodeID"] != here, n["NodeID"]))

    def close(self) -> None:
        """Leave the cluster; end a Ray that this process started, and remove its files."""
        if self.own or self.folder is not None:
            ray.shutdown()
        if self.folder is not None:
            remove_scratch(self.folder)


def connect(address: str | None, token: str | None = None) -> Cluster:
    """Join the cluster at `address`; "auto" is the one this machine is part of, if any; None starts Ray here alone."""
    if address not in (None, "auto"):
        _check_address(address)
    _quiet()
    if token:
        private.use_token(token)
    if ray.is_initialized():
        return Cluster(ray.get_runtime_context().gcs_address, own=False)
    if address == "auto":
        address = _running()
        say(f"Ray: joining the cluster at {address}" if address else "Ray: no cluster found, starting one here alone")
    return _start() if address is None else _join(address)


def _check_address(address: str) -> None:
    """Refuse what is not host:port, also when this process is part of a cluster already."""
    host, _, port = address.rpartition(":")
    if address.startswith("ray://") or not host or not port.isdigit():
        raise refuse("address", address, "it is the host:port of the cluster's head", "write --ray 10.0.0.1:6379")


def _quiet() -> None:
    """Switch off Ray's usage reports and its own messages on the terminal."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)


def _running() -> str | None:
    """Return the address of a cluster that this machine is part of."""
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    found = private.last_address()
    return found if found and _answers(found) is None else None


def _answers(address: str) -> OSError | None:
    """Return why host:port does not accept a connection; None if it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def _start() -> Cluster:
    private.assume_one_machine()
    if "RAY_AUTH_MODE" not in os.environ:
        # Other users of this machine must not reach it either.
        private.use_token(os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    # Ray gives its workers the niceness 15. On a machine that others use too they would get next to no time, and the
    # other engines' workers have none.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # A short path: Ray's sockets live below it, and their names may have 107 characters. Ray opens its own folder to
    # everybody; the one above it is this user's alone.
    folder = make_scratch("easgd-ray-", "/tmp")
    store = min(max(_shared_memory() // 4, STORE_BYTES[0]), STORE_BYTES[1])
    try:
        with private.patient_start():
            context = ray.init(
                address="local", _node_ip_address="127.0.0.1", include_dashboard=False, num_cpus=usable_cores(),
                object_store_memory=store, _temp_dir=f"{folder}/r", logging_level=logging.ERROR, log_to_driver=False,
                configure_logging=False,
            )  # fmt: skip
    except BaseException as error:
        remove_scratch(folder)
        if isinstance(error, Exception):
            raise SettingError(f"Ray does not start here: {_line(error)}; `easgd doctor` shows versions") from error
        raise
    return Cluster(str(context.address_info["address"]), own=True, folder=folder)


def _join(address: str) -> Cluster:
    host, _, port = address.rpartition(":")
    if (silent := _answers(address)) is not None:
        raise SettingError(
            f"address = {address}: nobody answers there ({silent}); start one with `ray start --head --port={port}`"
        )
    if host in ("127.0.0.1", "localhost") and _answers(f"{ray.util.get_node_ip_address()}:{port}") is not None:
        private.assume_one_machine()  # a Ray that was started so
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    except Exception as error:
        hint = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token, and use its version of Ray"
        raise SettingError(f"address = {address}: the cluster refuses ({_line(error)}); {hint}") from error
    if not private.authenticated():
        say(
            f"warning: the Ray cluster at {address} has no authentication: whoever reaches its ports can run programs "
            "on it; start its nodes with RAY_AUTH_MODE=token"
        )
    return Cluster(address, own=True)


def encrypted() -> bool:
    """Whether Ray's own traffic is encrypted: then ours must not go beside it in the clear."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _shared_memory() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return STORE_BYTES[0]
