"""The noisy quadratic of the paper's analysis: g(x) = A x − b − ξ (supplement, "Quadratic case").

The noise of worker i at its own step t is a function of (seed, i, t), so a run can be repeated, resumed, or compared
with another schedule under the same noise.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from easgd.errors import refuse

# Noise is drawn for this many steps at once: seeding costs more than drawing.
_BLOCK = 128


class Quadratic:
    """F(x) = ½xᵀAx − bᵀx with independent normal noise of standard deviation σ on every gradient.

    `curvature` is h (A = h·1), a vector (a diagonal A) or a positive-definite matrix A; `optimum` is x* = A⁻¹b.
    `gradient` has the signature that `easgd.simulate` expects.

    >>> problem = Quadratic(2.0, noise=0.0, optimum=1.0)
    >>> problem.gradient(torch.tensor([4.0]), worker=0, step=0)
    tensor([6.])
    """

    def __init__(
        self,
        curvature: float | Tensor = 1.0,
        *,
        noise: float = 1.0,
        optimum: float | Tensor = 0.0,
        seed: int = 0,
    ) -> None:
        self.curvature = torch.as_tensor(curvature, dtype=torch.float64)
        if noise < 0:
            raise refuse("noise", noise, "a standard deviation is at least 0", "use 0 for exact gradients")
        if not self._positive():
            raise refuse("curvature", curvature, "A must be symmetric and positive definite", "use h > 0")
        self.optimum = torch.as_tensor(optimum, dtype=torch.float64)
        self.noise = float(noise)
        self.seed = seed
        self._blocks: dict[int, tuple[int, int, np.ndarray[tuple[int, int], np.dtype[np.float64]]]] = {}

    def _positive(self) -> bool:
        A = self.curvature
        if A.ndim < 2:
            return bool((A > 0).all())
        return bool(torch.equal(A, A.T)) and bool((torch.linalg.eigvalsh(A) > 0).all())

    def _times_curvature(self, x: Tensor) -> Tensor:
        A = self.curvature.to(x.dtype)
        return A @ x if A.ndim == 2 else A * x

    def loss(self, x: Tensor) -> Tensor:
        """Return F(x) − F(x*) = ½(x − x*)ᵀA(x − x*), without noise."""
        offset = x - self.optimum.to(x.dtype)
        return 0.5 * (offset * self._times_curvature(offset)).sum()

    def gradient(self, x: Tensor, worker: int = 0, step: int = 0) -> Tensor:
        """Return A(x − x*) − ξ with the noise of `worker` at its own `step`, in x's dtype and shape."""
        exact = self._times_curvature(x - self.optimum.to(x.dtype))
        return exact if self.noise == 0 else exact - self.xi(x.numel(), worker, step).to(x.dtype).view_as(x)

    def xi(self, n: int, worker: int, step: int) -> Tensor:
        """Return the n numbers of noise ξ of `worker` at `step`."""
        block, row = divmod(step, _BLOCK)
        held = self._blocks.get(worker)
        if held is None or held[:2] != (block, n):
            # numpy's SeedSequence mixes (seed, worker, block), so that neighbouring workers have independent noise.
            draw = np.random.default_rng([self.seed, worker, block]).standard_normal((_BLOCK, n))
            held = self._blocks[worker] = (block, n, draw)
        return torch.from_numpy(held[2][row]) * self.noise
