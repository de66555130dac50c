"""Two Ray nodes on this machine, each with an address of its own, for benchmarks and tests.

The nodes are child processes and are ended by their process ids. A token keeps other users of this machine out.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

HEAD, SECOND = "127.0.0.2", "127.0.0.3"
PORT = 6379
LISTEN = "0A"
START_SECONDS = 60.0
# Detect a lost node within about ten seconds instead of thirty.
HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


def below(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        found |= new
        new = {p for p, parent in parents.items() if parent in new} - found
    return sorted(found)


class Place(Protocol):
    """Where the two nodes run."""

    addresses: tuple[str, str]
    folder: Path

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a machine, in a session of its own."""


class Loopback:
    """This machine, which has many loopback addresses."""

    addresses = (HEAD, SECOND)

    def __init__(self) -> None:
        # A short path: Unix sockets of Ray are below it, and their names are limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="easgd-nodes-", dir="/tmp"))

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(command, start_new_session=True, **options)


class TwoNodes:
    """A head node and a second node, each with its own address.

    Args:
        store: the size of an object store in bytes.
        place: by default 127.0.0.2 and 127.0.0.3; or the machines of a laboratory (`easgd.bench.link`).
        cpus: of each node, in Ray's accounts: workers of one processor are spread accordingly.
        patient: take half a minute and more to declare a node lost, as Ray does by default, not ten seconds.
    """

    def __init__(
        self, store: int = 300_000_000, place: Place | None = None, cpus: int = 2, patient: bool = False
    ) -> None:
        self.store, self.cpus, self.place = store, cpus, place or Loopback()
        self.token = secrets.token_hex(32)
        self.folder = self.place.folder
        self.port = _free_port() if place is None else PORT
        self.address = f"{self.place.addresses[0]}:{self.port}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Else Ray's workers have the niceness 15, and a comparison with other processes is unfair.
            "RAY_worker_niceness": "0",
            **({} if patient else HEALTH),
        }
        self.environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
        self.head = self._start(
            0, "--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder}"
        )
        _until(lambda: _listens(self.head.pid, self.port), f"Ray's head listens at {self.address}")
        self.second = self._start(1, f"--address={self.address}")
        # Wait for its raylet, which starts last: until then the cluster has one node.
        _until(lambda: _has_raylet(self.second.pid), f"the node at {self.place.addresses[1]} joins {self.address}")

    def _start(self, machine: int, *options: str) -> subprocess.Popen[Any]:
        command = [
            str(Path(sys.executable).parent / "ray"), "start", "--block",
            f"--node-ip-address={self.place.addresses[machine]}", f"--num-cpus={self.cpus}",
            f"--object-store-memory={self.store}", "--disable-usage-stats", *options,
        ]  # fmt: skip
        return self.place.start(
            machine, command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self, node: subprocess.Popen[Any]) -> list[int]:
        """Kill all processes of a node at once, as if its machine were lost; return their ids."""
        pids = below(node.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait(10)
        return pids

    def close(self) -> list[int]:
        """End both nodes; return the ids of their processes."""
        pids = [*self.kill(self.second), *self.kill(self.head)]
        shutil.rmtree(self.folder, ignore_errors=True)
        return pids


def _free_port() -> int:
    with socket.create_server((HEAD, 0)) as free:
        return int(free.getsockname()[1])


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {START_SECONDS:g} s: {what}")
        time.sleep(0.05)


def _listens(pid: int, port: int) -> bool:
    """Whether somebody listens on a port, in the network namespace of a process."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False


def _has_raylet(pid: int) -> bool:
    """Whether a node's agents run, so that it is registered."""
    for child in below(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().startswith("ray::"):
                return True
    return False
