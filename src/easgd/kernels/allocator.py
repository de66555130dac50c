"""Make the C library keep freed memory instead of returning it to the kernel.

A forward pass allocates tens of megabytes and frees them. glibc returns them to the kernel when the top of the heap
becomes free, and the next pass faults in every page again: a tenth of a step of the paper's CIFAR net on one thread.
Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP, _LARGEST_MMAP = 2**31 - 1, 32 << 20  # the most that mallopt takes

# The same for child processes: add it to their environment where the user has not set these variables.
ENVIRONMENT: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(_KEEP),
    "MALLOC_MMAP_THRESHOLD_": str(_LARGEST_MMAP),
}


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for reuse; return whether the C library supports it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEEP) and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP))
