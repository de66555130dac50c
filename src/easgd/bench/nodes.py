"""Two Ray nodes on this machine, each with its own loopback address, for benchmarks and tests.

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
from pathlib import Path

HEAD, SECOND = "127.0.0.2", "127.0.0.3"
START_SECONDS = 60.0


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


class TwoNodes:
    """A head node on 127.0.0.2 and a second node on 127.0.0.3. `store` is the object store's size in bytes."""

    def __init__(self, store: int = 300_000_000) -> None:
        self.store, self.token = store, secrets.token_hex(32)
        # A short path: Unix sockets of Ray are below it, and their names are limited to 107 bytes.
        self.folder = tempfile.mkdtemp(prefix="easgd-nodes-", dir="/tmp")
        with socket.create_server((HEAD, 0)) as free:
            self.port = int(free.getsockname()[1])
        self.address = f"{HEAD}:{self.port}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Detect a lost node within about ten seconds instead of thirty.
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "3000",
            "RAY_health_check_failure_threshold": "3",
        }
        self.environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
        self.head = self._start(
            HEAD, "--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder}"
        )
        self._wait()
        self.second = self._start(SECOND, f"--address={self.address}")
        # Wait for its raylet, which starts last: until then the cluster has one node.
        self._wait_for_raylet()

    def _start(self, ip: str, *options: str) -> subprocess.Popen[bytes]:
        command = [
            str(Path(sys.executable).parent / "ray"), "start", "--block", f"--node-ip-address={ip}", "--num-cpus=2",
            f"--object-store-memory={self.store}", "--disable-usage-stats", *options,
        ]  # fmt: skip
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection((HEAD, self.port), 1.0).close()
                return
            time.sleep(0.05)
        raise TimeoutError(f"Ray's head does not listen at {self.address}")

    def _wait_for_raylet(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            names = []
            for pid in below(self.second.pid):
                with contextlib.suppress(OSError):
                    names.append(Path(f"/proc/{pid}/comm").read_text())
            if any(name.startswith("ray::") for name in names):  # its agents run, so it is registered
                return
            time.sleep(0.05)

    def kill(self, node: subprocess.Popen[bytes]) -> list[int]:
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
