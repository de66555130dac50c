"""Two machines on one: network namespaces joined by a veth pair, whose link is slowed, cut and mended while used.

Both interfaces exist inside the namespaces only, so no packet leaves them and several laboratories never meet. A token
bucket (`tbf`) at each end limits what that end sends: the link has its rate in both directions. A cut link drops what
is sent (`blackhole`) and reports nothing, as a lost router does.

A guardian process removes everything when its owner ends, however it ends (`guardian`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

from easgd.bench.link import guardian
from easgd.errors import SettingError, refuse

ADDRESSES = ("10.77.0.1", "10.77.0.2")
DEVICE = "veth"
SPEEDS: tuple[float | None, ...] = (10, 100, 1000, None)
"""Mbit/s; None is the bare link."""


def missing() -> str | None:
    """Return in one line what this machine lacks for a laboratory; None if it has all."""
    needs = "it makes network namespaces"
    if sys.platform != "linux":
        return f"easgd bench link: {needs}, which {sys.platform} does not have; run it on Linux"
    if os.geteuid() != 0:
        return f"easgd bench link: {needs}, which user {os.geteuid()} may not; run it as root"
    if absent := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"easgd bench link: {needs} with {' and '.join(absent)}, not found; install iproute2"
    return None


class Network:
    """Machines 0 and 1 with the addresses `addresses`, and the link between them."""

    addresses = ADDRESSES

    def __init__(self) -> None:
        if (lack := missing()) is not None:
            raise SettingError(lack)
        guardian.clean_stale()
        tag = guardian.new_tag()
        self.names, self.folder = guardian.namespaces(tag), guardian.folder(tag)
        self._guardian = guardian.start(tag)
        self._rate: float | None = None
        self._cut: frozenset[int] = frozenset()
        self._cores = _halves(sorted(os.sched_getaffinity(0)))
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        self.folder.mkdir(0o700)
        a, b = self.names
        for name in self.names:
            system("ip", "netns", "add", name)
        system("ip", "link", "add", DEVICE, "netns", a, "type", "veth", "peer", "name", DEVICE, "netns", b)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            system("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                system("ip", "-n", name, "link", "set", device, "up")

    # the link --------------------------------------------------------------------------------------------------

    def shape(self, mbit: float | None) -> None:
        """Limit both directions to a number of Mbit/s; None removes the limit. A cut link stays cut."""
        if mbit is not None and not mbit > 0:
            raise refuse("mbit", mbit, "it is a number of Mbit/s above 0", "write shape(100), or None for no limit")
        self._rate = mbit
        self._apply()

    def cut(self, *machines: int) -> None:
        """Drop what these machines send, both if none is named; they are told nothing."""
        self._cut = frozenset(machines or (0, 1))
        self._apply()

    def mend(self) -> None:
        """Undo `cut`; the link has the speed that it was last given."""
        self._cut = frozenset()
        self._apply()

    def _apply(self) -> None:
        for machine, name in enumerate(self.names):
            words = ("blackhole",) if machine in self._cut else discipline(self._rate)
            system("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", *words)

    # processes -------------------------------------------------------------------------------------------------

    def inside(self, machine: int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a machine."""
        return ["ip", "netns", "exec", self.names[machine], *command]

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a machine, bound to the machine's share of the cores; it ends with the laboratory.

        A terminal's Ctrl-C reaches only the owner: it decides what becomes of the processes that it started.
        """
        process = subprocess.Popen(self.inside(machine, command), start_new_session=True, **options)
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, self._cores[machine])
        return process

    def pids(self, machine: int) -> list[int]:
        """Return the ids of all processes on a machine."""
        return guardian.pids_in(self.names[machine])

    def close(self) -> None:
        """End all processes on both machines and remove them: the guardian does, as if this process had died."""
        guardian.finish(self._guardian)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def discipline(mbit: float | None) -> tuple[str, ...]:
    """Return the queueing discipline of one end, in tc's words."""
    if mbit is None:
        return ("noqueue",)
    # A bucket of 2 ms lets the kernel's timers keep a fast link full; below 32 kB few packets fit into it.
    burst = max(32_000, round(mbit * 1e6 / 8 * 0.002))
    return ("tbf", "rate", f"{round(mbit * 1e6)}bit", "burst", str(burst), "latency", "50ms")


def system(*command: str) -> str:
    """Run one of iproute2's commands and return what it prints; one that fails is named with its message."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SettingError(f"{' '.join(command)}: {why}; this kernel or container does not allow it")
    return done.stdout


def _halves(cores: list[int]) -> tuple[set[int], set[int]]:
    """Divide the cores between the machines; a single one is shared."""
    if len(cores) == 1:
        return set(cores), set(cores)
    middle = len(cores) // 2
    return set(cores[:middle]), set(cores[middle:])
