"""What `easgd doctor` looks at: each function returns the findings of one section."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easgd.machine import memory

GIGABYTE = 1e9
SMALL_SHARED_MEMORY = 1e9
CORE = ("easgd", "torch", "numpy", "numba", "safetensors", "msgspec", "rich")
NOT_FOR_USERS = ("dev", "docs")
_REQUIREMENT = re.compile(r"(?P<package>[\w.-]+)[^;]*;.*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its value for programs, its text for people, and what to do about it."""

    name: str
    value: Any
    text: str
    advice: str = ""


def machine() -> list[Finding]:
    """Return what the hardware and the system offer to a process."""
    from easgd.launch.run_directory import base
    from easgd.machine import usable_cores

    total, free = memory()
    shared = shutil.disk_usage(base().parent)
    room = f"{_gigabytes(shared.free)} free of {_gigabytes(shared.total)} in {base().parent}"
    small = "the center of a large model may not fit into shared memory: set EASGD_SHARED to another folder"
    return [
        Finding("system", platform.platform(), platform.platform()),
        Finding("cores", usable_cores(), f"{usable_cores()} of {os.cpu_count()}"),
        Finding("memory", total, f"{_gigabytes(total)}, {_gigabytes(free)} available"),
        Finding("shared_memory", shared.free, room, small * (shared.free < SMALL_SHARED_MEMORY)),
        _accelerators(),
    ]


def _gigabytes(count: float) -> str:
    return f"{count / GIGABYTE:.3g} GB"


def _accelerators() -> Finding:
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return Finding("accelerators", [], "none: training runs on the CPU")
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if device.type == "cuda" else []
    names = names or [device.type] * torch.accelerator.device_count()
    return Finding("accelerators", names, f"{len(names)} of type {device.type}: {', '.join(sorted(set(names)))}")


def measured() -> list[Finding]:
    """Measure memory and a loopback connection, in about a second."""
    from easgd.bench.quick import loopback_bandwidth, memory_bandwidth

    memory, loopback = memory_bandwidth(), loopback_bandwidth()
    return [
        Finding("memory_bandwidth", memory, f"{_gigabytes(memory)}/s read and written by one core"),
        Finding("loopback_bandwidth", loopback, f"{_gigabytes(loopback)}/s through a loopback connection"),
    ]


def software() -> list[Finding]:
    """Return the versions of what easgd needs, and whether launchers of other kinds are there."""
    found = [Finding("python", platform.python_version(), platform.python_version())]
    found += [Finding(name, version(name), version(name) or "not installed") for name in CORE]
    torchrun = importlib.util.find_spec("torch.distributed.run") is not None
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool)]
    missing = "iproute2 is not installed: `easgd bench link` needs it, nothing else does"
    return [
        *found,
        Finding("torchrun", torchrun, "yes" if torchrun else "no: this torch was built without it"),
        Finding("iproute2", len(tools) == 2, "yes" if len(tools) == 2 else "no", missing * (len(tools) < 2)),
    ]


def extras() -> list[Finding]:
    """Return the optional packages by extra, and the line that installs what is missing."""
    found = []
    for extra, packages in sorted(declared_extras().items()):
        versions = {package: version(package) for package in packages}
        missing = [package for package, one in versions.items() if one is None]
        text = ", ".join(f"{package} {one or 'missing'}" for package, one in versions.items())
        advice = f"pip install 'easgd[{extra}]' brings {', '.join(missing)}" if missing else ""
        found.append(Finding(extra, versions, text, advice))
    return found


def declared_extras() -> dict[str, list[str]]:
    """Return the packages of each extra, as the installed package's metadata declares them."""
    try:
        lines = importlib.metadata.requires("easgd") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for match in filter(None, map(_REQUIREMENT.match, lines)):
        if match["extra"] not in NOT_FOR_USERS and match["package"] != "easgd":
            found.setdefault(match["extra"], []).append(match["package"])
    return found


def version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def data_sets() -> list[Finding]:
    """Return the data sets of this machine."""
    from easgd.data import available, home

    names = available()
    advice = "" if names else "no data set yet: `easgd data make digits` makes one in a second"
    return [
        Finding("folder", _short(home()), _short(home())),
        Finding("present", names, ", ".join(names) or "none", advice),
    ]


def runs() -> list[Finding]:
    """Return the runs of this user that are alive, and what dead ones left in shared memory."""
    from easgd.launch.run_directory import live_runs, stale_runs

    live, stale = sorted(live_runs()), stale_runs()
    size = sum(_sizes(stale))
    text = f"{len(stale)} folders, {_gigabytes(size)}: {', '.join(path.name for path in stale)}" if stale else "none"
    advice = "a launcher was killed and left folders in shared memory: the next `easgd launch` removes them"
    return [
        Finding("alive", live, ", ".join(live) or "none"),
        Finding("stale", [path.name for path in stale], text, advice * bool(stale)),
    ]


def _sizes(folders: list[Path]) -> Iterator[int]:
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                yield path.stat().st_size
            except OSError:  # removed by another process meanwhile
                continue


def _short(path: Path) -> str:
    """Write a path without the user's name: the report may be published."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
