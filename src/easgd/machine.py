"""What this machine offers to a process."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Return the number of processors that this process may use: those it is bound to, not all that there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> tuple[int, int]:
    """Return the bytes of memory that this process may have, and those available now."""
    rows = {}
    if (file := Path("/proc/meminfo")).exists():
        rows = {name: int(value.split()[0]) * 1024 for name, value in (s.split(":", 1) for s in file.open())}
    total = rows.get("MemTotal", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total, min(total, rows.get("MemAvailable", total))


_threads_of: str | None = None  # OMP_NUM_THREADS as torch last followed it; None in an interpreter of its own


def follow_thread_setting(*, forked: bool = False) -> None:
    """Let torch have as many threads as OMP_NUM_THREADS says now, in a worker that was forked with torch imported.

    A script may set the variable before its own `import torch`; there the import reads nothing any more.
    """
    global _threads_of
    now = os.environ.get("OMP_NUM_THREADS", "")
    if not forked and _threads_of in (None, now):
        return
    _threads_of = now
    if (count := now.partition(",")[0]).isdigit():
        import torch

        torch.set_num_threads(max(1, int(count)))
