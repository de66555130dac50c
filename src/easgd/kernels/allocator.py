"""The C library's allocator, told to keep what it is given back.

A forward pass allocates tens of megabytes and frees them; glibc returns them to the kernel as soon as a small block is
freed above them, and the next pass pays for every page again. On the paper's CIFAR net, one thread, that is a tenth of
a step. Elsewhere than on glibc nothing is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP, _LARGEST_MMAP = 2**31 - 1, 32 << 20  # the most that mallopt takes

# For processes that are yet to start: the same as `keep_freed_memory`, where the user has not said otherwise.
ENVIRONMENT: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(_KEEP),
    "MALLOC_MMAP_THRESHOLD_": str(_LARGEST_MMAP),
}


def keep_freed_memory() -> bool:
    """Let freed memory be used again instead of given back; whether this C library can do it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEEP) and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP))
