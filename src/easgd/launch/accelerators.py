"""Which accelerators of this machine each worker sees.

A worker of its own process takes the first device that it sees. So each gets its share by the variable that the
device's driver reads; where there is no accelerator, or the user has set the variable, nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import glob

# Kind of device -> variables that choose devices. The first is the one to set.
VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
    "xpu": ("ZE_AFFINITY_MASK",),
}
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd", "/dev/davinci[0-9]*", "/dev/dri/renderD*")


def share(devices: Sequence[str], workers: int, rank: int, per_worker: float | None = None) -> list[str]:
    """Return the devices that worker `rank` of `workers` sees.

    Args:
        devices: all that there are; more workers than devices share them, as evenly as whole devices allow.
        workers: how many were launched. One that joined later has a rank beyond them, and shares too.
        rank: from 0.
        per_worker: devices for each, or a fraction of one; None divides all of them.
    """
    if not devices or per_worker == 0:
        return []
    each = max(1, len(devices) // workers) if per_worker is None else per_worker
    first, count = int(rank * each), min(max(1, int(each)), len(devices))
    return [devices[(first + k) % len(devices)] for k in range(count)]


class Accelerators:
    """The devices of this machine, shared out to the workers of a run.

    Args:
        kind: a key of `VARIABLES`, or None without an accelerator.
        count: how many devices the machine has.
        workers: how many are launched.
        per_worker: devices for each; None divides all of them, and leaves a variable that the user has set alone.
        environment: where the user may have set the variable.
    """

    def __init__(
        self, kind: str | None, count: int, workers: int, per_worker: float | None, environment: Mapping[str, str]
    ) -> None:
        self.workers, self.per_worker = workers, per_worker
        self.variable, self.devices = "", [str(k) for k in range(count)]
        if kind is None or not count:
            return
        names = VARIABLES[kind]
        chosen = next((name for name in names if name in environment), None)
        if chosen is not None:
            if per_worker is None:
                return
            self.devices = [word.strip() for word in environment[chosen].split(",") if word.strip()]
        self.variable = chosen or names[0]

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variable to set for one worker; empty where nothing is to be set."""
        if not self.variable:
            return {}
        return {self.variable: ",".join(share(self.devices, self.workers, rank, self.per_worker))}

    def sharing(self) -> str | None:
        """Say in one line that workers share devices; None if each has its own."""
        seen = [share(self.devices, self.workers, rank, self.per_worker) for rank in range(self.workers)]
        if not self.variable or sum(map(len, seen)) <= len(self.devices):
            return None
        return f"{self.workers} workers share {len(self.devices)} accelerators ({self.variable})"


def find() -> tuple[str | None, int]:
    """Return the kind of accelerator of this machine and how many there are; (None, 0) without one.

    Torch is imported only where a driver's device file exists, and counts without opening a device.
    """
    if not any(map(glob, _DEVICE_FILES)):
        return None, 0
    import torch

    device = torch.accelerator.current_accelerator()
    if device is None:
        return None, 0
    kind = "hip" if device.type == "cuda" and torch.version.hip else device.type
    if kind not in VARIABLES:
        return None, 0
    # Not torch.accelerator.device_count: torch.cuda's own asks the driver's library, which opens no device.
    return kind, int(getattr(torch, device.type).device_count())
