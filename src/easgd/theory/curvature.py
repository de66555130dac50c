"""The curvature of a model: the largest Hessian eigenvalue of its loss, by Hessian-vector products (not in the paper).

The bounds of this package depend on h. For a model that is not quadratic, h is the largest eigenvalue of the Hessian of
its loss at the current weights. A Hessian-vector product costs two backward passes, and Lanczos needs a few dozen. The
result holds for one point and one batch; during training the curvature changes, and usually grows.

torch is imported by the functions, because the rest of the package does not need it.
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
    """The largest (algebraic) Hessian eigenvalue and its accuracy."""

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
    """Return the largest Hessian eigenvalue of `loss(model)` in the model's trainable parameters.

    Lanczos with full reorthogonalisation finds the largest algebraic eigenvalue. Power iteration would find the largest
    in size, which may be negative, and needs far more products.

    Args:
        model: any module, in its current mode (call `.eval()` first if dropout or batch norm make the loss random).
        loss: model → scalar tensor, for instance `lambda m: cross_entropy(m(x), y)`.
        tolerance: stop when the residual is this small relative to the eigenvalue.
        iterations: most Hessian-vector products.
        seed: of the start vector.

    Returns:
        The eigenvalue with its residual. Memory grows by one parameter vector per iteration.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> largest_curvature(model, lambda m: 1.5 * m.weight.square().sum()).value
    3.0
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
        # Twice: after one pass of Gram-Schmidt in float32, eigenvalues that were found already appear again.
        Q = torch.stack(basis)
        for _ in range(2):
            w = w - Q.T @ (Q @ w)
        beta = float(w.norm())
        T = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
        values, vectors = np.linalg.eigh(T)
        top, residual = float(values[-1]), abs(beta * float(vectors[-1, -1]))
        scale = max(abs(float(values[-1])), abs(float(values[0])))
        best = Curvature(top, residual, number, residual <= tol * abs(top))
        # A tiny remainder: the basis spans an invariant subspace, and further products would only add rounding errors.
        exhausted = beta <= 1e-12 * scale or scale == 0.0
        if exhausted:
            return Curvature(top, residual, number, True)
        if best.converged:
            return best
        off.append(beta)
        basis.append(w / beta)
    return best
