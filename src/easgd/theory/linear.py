"""The spectral radius of linear maps, and their iteration under noise.

In a stack of maps the matrices are in the last two axes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from easgd.machine import usable_cores
from easgd.theory.checks import Array

# Large enough that Python's overhead is negligible; small enough for a core's cache and for many chunks, so that no
# core waits long for the last one. One chunk per core is in memory at a time, whatever the size of the grid.
CHUNK_BYTES = 1 << 19
SMALL = 10_000  # entries; for fewer, converting to torch costs more than it saves

Progress = Callable[[int], object]


def spectral_radius(maps: Array) -> Array:
    """Return the largest absolute eigenvalue of each map in a stack [..., n, n]; ∞ if an entry is not finite.

    >>> spectral_radius(np.array([[0.0, 0.5], [0.5, 0.0]]))
    array(0.5)
    """
    finite = np.asarray(np.isfinite(maps).all(axis=(-2, -1)))
    if finite.all():
        return np.asarray(np.abs(_eigvals(maps)).max(axis=-1))
    return np.where(finite, spectral_radius(np.where(finite[..., None, None], maps, 0.0)), np.inf)


def _eigvals(maps: Array) -> NDArray[np.complex128]:
    # torch's LAPACK is a third faster on small maps. It is used only if torch is imported already: the import takes
    # longer than the eigenvalues of a whole figure save.
    torch = sys.modules.get("torch")
    if torch is None or maps.size < SMALL:
        return np.asarray(np.linalg.eigvals(maps), dtype=np.complex128)
    return np.asarray(torch.linalg.eigvals(torch.from_numpy(np.ascontiguousarray(maps))).numpy())


def radii(
    build: Callable[..., Array], settings: tuple[Array, ...], size: int, progress: Progress | None = None
) -> Array:
    """Return the spectral radius of `build(*settings)` over broadcast settings, chunk by chunk on every core.

    Each thread builds a chunk of maps, computes the eigenvalues and keeps one number per map, so a large grid of maps
    is never in memory at once. Threads suffice because LAPACK runs outside the interpreter lock.

    Args:
        build: settings of shape [m] each → maps [m, n, n].
        settings: arrays that broadcast together.
        size: n, to choose the chunk.
        progress: called with the number of maps just done.

    Returns:
        The radii, in the broadcast shape.
    """
    shape = np.broadcast_shapes(*(axis.shape for axis in settings))
    # Views, so the grid takes no memory. The last array makes plain numbers arrays of one dimension.
    grid = np.broadcast_arrays(*settings, np.empty((1,) * max(1, len(shape))))[:-1]
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
    """Iterate s ← M s + noise for t steps; the noise has covariance Q and is independent at every step.

        M^t   and   V_t = Σ_{k<t} M^k Q (M^k)^T

    by doubling, V_{2n} = V_n + M^n V_n (M^n)^T, in O(log t) products. All terms of the sum are positive, so it is
    accurate where closed forms divide by the difference of two nearly equal roots.

    Returns:
        (M^t, V_t), stacks if M or Q is one. Entries overflow to ∞ or nan if M is unstable and t is large.

    >>> power, variance = run(np.array([[0.5]]), np.array([[1.0]]), 2)
    >>> float(power[0, 0]), float(variance[0, 0])
    (0.25, 1.25)
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
