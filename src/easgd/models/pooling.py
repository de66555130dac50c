"""Max pooling and ReLU in one pass forward and one pass backward.

torch stores a 64-bit index per pooled point, zeroes the whole gradient before it writes a quarter of it, and makes
another pass for the ReLU. Here one byte per pooled point says which of the four points was the largest, and every point
of the gradient is written once. The results are bit for bit torch's: the first of equal points gets the gradient, and
NaN is propagated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor, nn
from torch.nn import functional

Points = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
_ZERO, _NONE = np.float32(0), np.uint8(4)  # _NONE: the ReLU cut all four points off


class MaxPoolReLU(nn.Module):
    """ReLU after `torch.nn.MaxPool2d`; one pass for 2×2 windows in float32 and channels_last memory on a CPU."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        windows = self.kernel == self.stride == 2 and x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
        here = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()
        if windows and here and x.is_contiguous(memory_format=torch.channels_last):
            pooled: Tensor = _OnePass.apply(x)[0]  # type: ignore[no-untyped-call]
            return pooled
        return functional.relu(functional.max_pool2d(x, self.kernel, self.stride))

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}"


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        points = x.detach().permute(0, 2, 3, 1)
        images, height, width, channels = points.shape
        pooled = x.new_empty(images, height // 2, width // 2, channels)
        codes = torch.empty(pooled.shape, dtype=torch.uint8)
        _pool(points.numpy(), pooled.numpy(), codes.numpy())
        return pooled.permute(0, 3, 1, 2), codes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        (codes,) = ctx.saved_tensors
        corners = [tangent[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return sum(c * (codes == k).permute(0, 3, 1, 2) for k, c in enumerate(corners)), None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
        (codes,) = ctx.saved_tensors
        g = gradient.permute(0, 2, 3, 1).contiguous()
        if torch.is_grad_enabled():  # for second derivatives: only operations that torch can differentiate
            each = torch.stack([g * (codes == k) for k in range(4)], 3)
            images, height, width, _, channels = each.shape
            spread = each.view(images, height, width, 2, 2, channels).transpose(2, 3)
            return spread.reshape(images, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)
        images, height, width, channels = g.shape
        back = g.new_empty(images, 2 * height, 2 * width, channels)
        _spread(g.numpy(), codes.numpy(), back.numpy())
        return back.permute(0, 3, 1, 2)


@njit(nogil=True, cache=True, boundscheck=False)
def _pool(x: Points, pooled: Points, codes: Codes) -> None:
    for n in range(pooled.shape[0]):
        for i in range(pooled.shape[1]):
            for j in range(pooled.shape[2]):
                a, b = x[n, 2 * i, 2 * j], x[n, 2 * i, 2 * j + 1]
                c, d = x[n, 2 * i + 1, 2 * j], x[n, 2 * i + 1, 2 * j + 1]
                out, code = pooled[n, i, j], codes[n, i, j]
                for k in range(out.size):
                    best, which = a[k], np.uint8(0)
                    # x != x is true for NaN alone, which is propagated.
                    if b[k] > best or b[k] != b[k]:
                        best, which = b[k], np.uint8(1)
                    if c[k] > best or c[k] != c[k]:
                        best, which = c[k], np.uint8(2)
                    if d[k] > best or d[k] != d[k]:
                        best, which = d[k], np.uint8(3)
                    if best <= _ZERO:
                        best, which = _ZERO, _NONE
                    out[k] = best
                    code[k] = which


@njit(nogil=True, cache=True, boundscheck=False)
def _give(gradient: Points, codes: Codes, code: np.uint8, to: Points) -> None:
    # One output at a time: the compiler does not vectorise a loop with four, which it cannot prove disjoint.
    for k in range(gradient.size):
        to[k] = gradient[k] if codes[k] == code else _ZERO


@njit(nogil=True, cache=True, boundscheck=False)
def _spread(g: Points, codes: Codes, back: Points) -> None:
    for n in range(g.shape[0]):
        for i in range(g.shape[1]):
            for j in range(g.shape[2]):
                _give(g[n, i, j], codes[n, i, j], np.uint8(0), back[n, 2 * i, 2 * j])
                _give(g[n, i, j], codes[n, i, j], np.uint8(1), back[n, 2 * i, 2 * j + 1])
                _give(g[n, i, j], codes[n, i, j], np.uint8(2), back[n, 2 * i + 1, 2 * j])
                _give(g[n, i, j], codes[n, i, j], np.uint8(3), back[n, 2 * i + 1, 2 * j + 1])
