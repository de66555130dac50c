"""Two Ray nodes on this machine, each on a loopback address of its own: a cluster to measure and to test on.

The nodes are child processes and end by their process ids. They carry a token: others on this machine cannot use them.
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
    """A process and all that descend from it."""
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
    """A head on 127.0.0.2 and a second node on 127.0.0.3."""

    def __init__(self, store: int = 300_000_000) -> None:
        self.store, self.token = store, secrets.token_hex(32)
        # A short path: Ray's sockets live below it.
        self.folder = tempfile.mkdtemp(prefix="easgd-nodes-", dir="/tmp")
        with socket.create_server((HEAD, 0)) as free:
            self.port = int(free.getsockname()[1])
        self.address = f"{HEAD}:{self.port}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # A lost node is noticed within about ten seconds instead of thirty.
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
        # Its raylet is the last to come, and worth waiting for: what starts earlier would find one node only.
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
            if any(name.startswith("ray::") for name in names):  # its agents run: it is registered
                return
            time.sleep(0.05)

    def kill(self, node: subprocess.Popen[bytes]) -> list[int]:
        """Lose a machine: all its processes at once. Returns their numbers."""
        pids = below(node.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait(10)
        return pids

    def close(self) -> list[int]:
        """End both; returns the processes that were."""
        pids = [*self.kill(self.second), *self.kill(self.head)]
        shutil.rmtree(self.folder, ignore_errors=True)
        return pids
