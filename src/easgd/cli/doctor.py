"""`easgd doctor`: what was found on this machine, one line each."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

from easgd.cli.parsing import Command


@dataclass(frozen=True)
class DoctorOptions:
    """`easgd doctor` has none."""


COMMAND = Command(
    "doctor", DoctorOptions, "Print the versions and the hardware that easgd would use.", ["doctor"], bare=True
)
PACKAGES = (
    "torch",
    "numpy",
    "numba",
    "safetensors",
    "msgspec",
    "matplotlib",
    "plotly",
    "scikit-learn",
    "ray",
    "tensorboard",
)


def version_of(package: str) -> str:
    """Return an installed package's version, or what to do about its absence."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed (pip install 'easgd[{package}]')"


def main(argv: list[str]) -> int:
    """Print the report."""
    COMMAND.parse(argv)
    import torch

    from easgd.machine import usable_cores

    device = torch.accelerator.current_accelerator(check_available=True)
    accelerator = "none" if device is None else f"{torch.accelerator.device_count()} of type {device.type}"
    rows = [
        ("python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}, {usable_cores()} cores"),
        ("accelerator", accelerator),
        *((package, version_of(package)) for package in PACKAGES),
    ]
    for name, value in rows:
        print(f"{name:<14}{value}")
    return 0
