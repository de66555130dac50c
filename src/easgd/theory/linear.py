"""Two things one does with a linear map: find its spectral radius, and let it run with noise.

Knows nothing of any method. Stacks of maps have the matrix in the last two axes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from easgd.machine import usable_cores
from easgd.theory.checks import Array

# Large enough that Python's share is nothing; small enough to stay in a core's cache, and for many chunks, so that no
# core waits long for the last one. Memory does not grow with the grid: as many chunks live as there are cores.
CHUNK_BYTES = 1 << 19
SMALL = 10_000  # entries; below this the way there and back costs more than it saves

Progress = Callable[[int], object]


def spectral_radius(maps: Array) -> Array:
    """Return the largest absolute eigenvalue of each map in a stack [..., n, n]; ∞ where an entry overflowed."""
    finite = np.asarray(np.isfinite(maps).all(axis=(-2, -1)))
    if finite.all():
        return np.asarray(np.abs(_eigvals(maps)).max(axis=-1))
    return np.where(finite, spectral_radius(np.where(finite[..., None, None], maps, 0.0)), np.inf)


def _eigvals(maps: Array) -> NDArray[np.complex128]:
    """Eigenvalues by torch's LAPACK where the process has torch already: a third faster on small maps.

    It is never imported for that: its import takes longer than a figure's worth of eigenvalues saves.
    """
    torch = sys.modules.get("torch")
    if torch is None or maps.size < SMALL:
        return np.asarray(np.linalg.eigvals(maps), dtype=np.complex128)
    return np.asarray(torch.linalg.eigvals(torch.from_numpy(np.ascontiguousarray(maps))).numpy())


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
    shape = np.broadcast_shapes(*(axis.shape for axis in settings))
    grid = np.broadcast_arrays(*settings, np.empty((1,) * max(1, len(shape))))[
        :-1
    ]  # views: axes are not multiplied out
    result = np.empty(grid[0].size)
    total, step = result.size, max(1, CHUNK_BYTES // (8 * size * size))

    def chunk(start: int) -> int:
        part = slice(start, min(start + step, total))
        at = np.unravel_index(np.arange(part.start, part.stop), grid[0].shape)
        # settings were checked to be finite, so the maps need not be checked again
        result[part] = np.abs(_eigvals(build(*(axis[at] for axis in grid)))).max(axis=-1)
        return part.stop - part.start

    starts = range(0, total, step)
    if len(starts) < 2:
        done = [chunk(start) for start in starts]
        if progress is not None:
            progress(sum(done))
        return result.reshape(shape)
    with ThreadPoolExecutor(usable_cores()) as pool:
        for number in pool.map(chunk, starts):
            if progress is not None:
                progress(number)
    return result.reshape(shape)


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
