"""Curvature of a real model: the largest Hessian eigenvalue of a loss, by Hessian-vector products (ours).

The bounds of this package speak of h. For a model that is no quadratic, h is the largest eigenvalue of the Hessian of
its loss at the present weights: a product with a vector costs two backward passes, and Lanczos needs a few dozen of
them. The answer holds at one point and one batch; during training curvature moves, usually up.

torch is imported when called, so that the rest of the theory stays light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from easgd.errors import refuse
from easgd.theory.checks import count, numbers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Curvature:
    """The largest (algebraic) Hessian eigenvalue and how well it is known."""

    value: float
    residual: float  # ‖Hu − value·u‖ for the unit Ritz vector u: a true eigenvalue is at most this far away
    iterations: int  # Hessian-vector products
    converged: bool  # residual ≤ tolerance · |value|


def largest_curvature(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module], torch.Tensor],
    *,
    tolerance: float = 1e-3,
    iterations: int = 100,
    seed: int = 0,
) -> Curvature:
    """Largest Hessian eigenvalue of `loss(model)` in the model's trainable parameters.

    Lanczos with full reorthogonalisation: it finds the largest algebraic eigenvalue, where power iteration would find
    the largest in size, which may be negative, and it needs far fewer products.

    Args:
        model: any module; it is evaluated as it stands (call `.eval()` first where dropout or batch norm would make
            the loss random).
        loss: model → scalar tensor, for instance `lambda m: cross_entropy(m(x), y)`.
        tolerance: stop when the residual is this small relative to the eigenvalue.
        iterations: most Hessian-vector products.
        seed: of the start vector.

    Returns:
        The eigenvalue with its residual; memory is one parameter vector per iteration.
    """
    import torch

    limit, tol = count("iterations", iterations), float(numbers("tolerance", tolerance, 0))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise refuse("model", type(model).__name__, "has no trainable parameters", "set requires_grad on some")
    value = loss(model)
    if value.numel() != 1 or not bool(torch.isfinite(value)):
        raise refuse("loss", value.detach().tolist(), "must be one finite number", "return the mean loss of a batch")
    with torch.enable_grad():
        grads = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
    flat_grad = torch.cat([grad.reshape(-1) for grad in grads])

    def product(vector: torch.Tensor) -> torch.Tensor:
        rows = torch.autograd.grad(
            flat_grad, parameters, vector, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([row.reshape(-1) for row in rows]).detach()

    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(flat_grad.numel(), generator=generator, dtype=torch.float64)
    q = q.to(flat_grad.device, flat_grad.dtype)
    return _lanczos(product, q / q.norm(), tol, min(limit, flat_grad.numel()))


def _lanczos(product: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor, tol: float, limit: int) -> Curvature:
    import torch

    basis = [q]
    diagonal: list[float] = []
    off: list[float] = []
    best = Curvature(0.0, float("inf"), 0, False)
    for number in range(1, limit + 1):
        w = product(basis[-1])
        diagonal.append(float(w @ basis[-1]))
        # Twice: one pass of Gram-Schmidt in float32 leaves enough of the old vectors to bring back ghosts.
        Q = torch.stack(basis)
        for _ in range(2):
            w = w - Q.T @ (Q @ w)
        beta = float(w.norm())
        T = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
        values, vectors = np.linalg.eigh(T)
        top, residual = float(values[-1]), abs(beta * float(vectors[-1, -1]))
        scale = max(abs(float(values[-1])), abs(float(values[0])))
        best = Curvature(top, residual, number, residual <= tol * abs(top))
        # A tiny remainder is an invariant subspace: nothing more to learn from this start.
        exhausted = beta <= 1e-12 * scale or scale == 0.0
        if exhausted:
            return Curvature(top, residual, number, True)
        if best.converged:
            return best
        off.append(beta)
        basis.append(w / beta)
    return best
