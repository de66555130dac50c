"""Two things one does with a linear map: find its spectral radius, and let it run with noise.

Knows nothing of any method. Stacks of maps have the matrix in the last two axes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from easgd.theory.checks import Array

# One chunk is a few MiB: large enough that Python's share is nothing, small enough that memory does not grow with
# the grid. Chunks in flight are bounded by the cores.
CHUNK_BYTES = 4 << 20

Progress = Callable[[int], object]


def spectral_radius(maps: Array) -> Array:
    """Return the largest absolute eigenvalue of each map in a stack [..., n, n]; ∞ where an entry overflowed."""
    finite = np.asarray(np.isfinite(maps).all(axis=(-2, -1)))
    if finite.all():
        return np.asarray(np.abs(np.linalg.eigvals(maps)).max(axis=-1))
    return np.where(finite, spectral_radius(np.where(finite[..., None, None], maps, 0.0)), np.inf)


def radii(
    build: Callable[..., Array], settings: tuple[Array, ...], size: int, progress: Progress | None = None
) -> Array:
    """Spectral radius of `build(*settings)` over broadcast settings, chunk by chunk on every core.

    A grid of a million maps is never in memory at once: each thread builds a chunk of maps, takes its eigenvalues and
    keeps one number per map. LAPACK runs outside Python's lock, so threads are enough.

    Args:
        build: settings of shape [m] each → maps [m, n, n].
        settings: arrays that broadcast together.
        size: n, to choose the chunk.
        progress: called with the number of maps just done.

    Returns:
        The radii, in the broadcast shape.
    """
    grid = np.broadcast_arrays(*settings)
    shape, total = grid[0].shape, grid[0].size
    flat = [axis.reshape(-1) for axis in grid]
    result = np.empty(total)
    step = max(1, CHUNK_BYTES // (8 * size * size))

    def chunk(start: int) -> int:
        part = slice(start, min(start + step, total))
        result[part] = spectral_radius(build(*(axis[part] for axis in flat)))
        return part.stop - part.start

    starts = range(0, total, step)
    if len(starts) < 2:
        done = [chunk(start) for start in starts]
        if progress is not None:
            progress(sum(done))
        return result.reshape(shape)
    with ThreadPoolExecutor(_cores()) as pool:
        for number in pool.map(chunk, starts):
            if progress is not None:
                progress(number)
    return result.reshape(shape)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(M: Array, Q: Array, t: int) -> tuple[Array, Array]:
    """Let s ← M s + noise run for t steps, where the noise has covariance Q and is new at every step.

        M^t   and   V_t = Σ_{k<t} M^k Q (M^k)^T

    by doubling, V_{2n} = V_n + M^n V_n (M^n)^T: sums of positive terms only, so that it stays exact where closed
    forms divide by the difference of two nearly equal roots, and costs log t.

    Returns:
        (M^t, V_t), stacks where M or Q is one. Entries overflow to ∞ or nan when M is unstable and t is large.
    """
    power = np.broadcast_to(np.eye(M.shape[-1]), M.shape)
    cov = np.zeros(np.broadcast_shapes(M.shape, Q.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        for bit in f"{t:b}" if t else "":
            cov = cov + power @ cov @ np.swapaxes(power, -1, -2)
            power = power @ power
            if bit == "1":
                cov = M @ cov @ np.swapaxes(M, -1, -2) + Q
                power = M @ power
    return power, cov
