"""`easgd doctor`: what was found on this machine, one line each."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from easgd.errors import SettingError

USAGE = """usage: easgd doctor

Print the versions and the hardware that easgd would use.
example: easgd doctor
"""

PACKAGES = ("torch", "numpy", "numba", "safetensors", "matplotlib", "plotly", "scikit-learn", "ray", "tensorboard")


def version_of(package: str) -> str:
    """Return an installed package's version, or what to do about its absence."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed (pip install 'easgd[{package}]')"


def main(argv: list[str]) -> int:
    """Print the report."""
    if {"-h", "--help"} & set(argv):
        print(USAGE, end="")
        return 0
    if argv:
        raise SettingError(f"{argv[0]!r}: doctor takes no arguments; write `easgd doctor`")
    import torch

    accelerator = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows = [
        ("python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}, {cores} cores"),
        ("accelerator", accelerator),
        *((package, version_of(package)) for package in PACKAGES),
    ]
    for name, value in rows:
        print(f"{name:<14}{value}")
    return 0
