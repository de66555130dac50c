"""What this machine offers to a process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of processors that this process may use: those it is bound to, not all that there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
