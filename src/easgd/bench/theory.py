"""`easgd bench theory`: the cost of figure 1 relative to its eigenvalues alone, and its memory on a large grid.

The library starts from the grid of (η, ρ), builds the maps chunk by chunk, computes the eigenvalues and keeps one
number per map. The reference is one batched eigenvalue call over maps that are in memory already, by numpy or torch, on
one thread or on every core, whichever is fastest. Two sets of maps are timed:

    same maps       the matrices whose eigenvalues the library computes (one rotated turn, see `easgd.theory.maps`)
    composed maps   the paper's cycles, whose eigenvalues are the p-th powers of those
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from easgd.bench import Row, interleaved
from easgd.machine import usable_cores
from easgd.theory import admm_radius, admm_turn, easgd_radius, easgd_turn
from easgd.theory.checks import Array
from easgd.theory.linear import CHUNK_BYTES
from easgd.theory.maps import admm_rotated, easgd_rotated

POINTS, LARGE, MEMORY = 300, 1000, 1024.0
REPEAT = 5


def rows() -> list[Row]:
    """Time ADMM and EASGD, p = 3 and 8, on the grid of figure 1; then measure the memory of a larger grid."""
    from rich.console import Console
    from rich.progress import track

    lr, rho = (axis.reshape(-1) for axis in np.meshgrid(_axis(POINTS, 1e-2), _axis(POINTS, 10.0)))
    cases = [(method, p) for p in (3, 8) for method in ("ADMM", "EASGD")]
    result: list[Row] = []
    console = Console(stderr=True)
    for method, p in track(cases, "figure 1", console=console, transient=True, disable=not console.is_terminal):
        result += _compare(method, p, lr, rho)
    # Figure 1 as a whole: the sum over its panels.
    for stack in ("same maps", "composed maps"):
        panels = [row for row in result if row.case.endswith(stack)]
        value, reference = sum(row.value for row in panels), sum(row.reference for row in panels)
        result.append(Row(f"figure 1, all panels, {stack}", value, "s", reference, value / reference))
    used = _memory()
    result.append(Row(f"memory, ADMM p = 3 on {LARGE} × {LARGE}", used, "MiB", MEMORY, used / MEMORY))
    return result


def _compare(method: str, p: int, lr: Array, rho: Array) -> list[Row]:
    """Compare the library with the eigenvalues alone, for both sets of maps, timed in turn."""
    ours: Callable[[], object]
    if method == "ADMM":
        ours, rotated = lambda: admm_radius(p, lr, rho), admm_rotated(p, lr, rho)
    else:
        ours, rotated = lambda: easgd_radius(p, lr, lr * rho), easgd_rotated(p, lr, lr * rho)
    stacks = {"same maps": rotated, "composed maps": _composed(method, p, lr, rho)}
    with ThreadPoolExecutor(usable_cores()) as pool:
        calls = {"ours": ours} | {stack: _fastest(maps, pool) for stack, maps in stacks.items()}
        times = interleaved(calls, repeat=REPEAT)
    took = times["ours"]
    return [Row(f"{method} p = {p}, {stack}", took, "s", times[stack], took / times[stack]) for stack in stacks]


def _fastest(maps: Array, pool: ThreadPoolExecutor) -> Callable[[], object]:
    """Return the way of computing the eigenvalues that is fastest on a tenth of the maps."""
    trial = interleaved(_bare(maps[::10].copy(), pool), repeat=3)
    return _bare(maps, pool)[min(trial, key=lambda name: trial[name])]


def _bare(maps: Array, pool: ThreadPoolExecutor) -> dict[str, Callable[[], object]]:
    tensor = torch.from_numpy(maps)
    parts = max(1, maps.nbytes // CHUNK_BYTES)  # as the library does
    arrays, tensors = np.array_split(maps, parts), tensor.tensor_split(parts)
    return {
        "numpy": lambda: np.linalg.eigvals(maps),
        "torch": lambda: torch.linalg.eigvals(tensor),
        "numpy on every core": lambda: list(pool.map(np.linalg.eigvals, arrays)),
        "torch on every core": lambda: list(pool.map(torch.linalg.eigvals, tensors)),
    }


def _composed(method: str, p: int, lr: Array, rho: Array) -> Array:
    """Return the paper's cycles for all settings of the grid."""
    size = 2 * p + 1 if method == "ADMM" else p + 1
    result = np.broadcast_to(np.eye(size), (lr.size, size, size))
    for i in range(p):
        if method == "EASGD":
            turn = np.broadcast_to(easgd_turn(i, p, 0.0, 0.0), result.shape).copy()
            turn[:, i, i], turn[:, p, p] = 1 - lr - lr * rho, 1 - lr * rho
            turn[:, i, p] = turn[:, p, i] = lr * rho
            result = turn @ result
            continue
        F1, _, F3 = admm_turn(i, p, 0.0, 0.0)
        F2 = np.broadcast_to(np.eye(size), result.shape).copy()
        pull = lr * rho / (1 + lr * rho)
        F2[:, 2 * i + 1, 2 * i], F2[:, 2 * i + 1, 2 * p] = pull, pull
        F2[:, 2 * i + 1, 2 * i + 1] = (1 - lr) / (1 + lr * rho)
        result = F3 @ F2 @ F1 @ result
    return np.ascontiguousarray(result)


def _memory() -> float:
    """Return the peak memory in MiB that a large grid takes, including its result."""
    lr, rho = _axis(LARGE, 1e-2)[None], _axis(LARGE, 10.0)[:, None]
    tracemalloc.start()
    admm_radius(3, lr, rho)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def _axis(points: int, top: float) -> Array:
    return (np.arange(points) + 0.5) / points * top
