"""A convolution by Fourier transforms, which is cheaper on a CPU for large kernels and small images.

A convolution is a product of transforms. In one dimension, with n points, r weights and m = n − r + 1 results, the
discrete transform of length n is exact, because no result wraps around the end. A complex product is three real ones:

    y = A((G w) ∘ (B x)),       with k = n + ⌈n/2⌉ − 1 products

Images are transformed along both sides, and ∘ becomes k² matrix products over channels. The paper's second CIFAR
layer, 5×5 weights on 12×12 points, needs 289 multiplications instead of 1600 for each pair of channels; including the
transforms, a quarter of the arithmetic. The function is the same up to rounding. The errors are small because these
transforms are nearly orthogonal; Winograd's are not.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Matrix = npt.NDArray[np.floating]

LONGEST = 16  # points on a side; transforms of larger images do not fit into the caches
GAIN = 2.5  # the least saving in multiplications that outweighs the extra passes over memory


class Conv2d(nn.Conv2d):
    """`torch.nn.Conv2d` that uses transforms where they are faster: float32 on a CPU, stride 1, no padding."""

    def forward(self, x: Tensor) -> Tensor:
        plain = self.stride == (1, 1) and self.padding == (0, 0) and self.dilation == (1, 1) and self.groups == 1
        fits = x.dim() == 4 and x.shape[1] == self.in_channels
        square = fits and x.shape[2] == x.shape[3] and self.kernel_size[0] == self.kernel_size[1]
        here = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        busy = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()  # they choose the algorithm
        if plain and square and here and not busy and worth(x.shape[2], *self.weight.shape[:3]):
            return transformed(x, self.weight, self.bias)
        return super().forward(x)


@functools.cache
def worth(n: int, outputs: int, inputs: int, r: int) -> bool:
    """Whether transforms save enough multiplications for n×n images and r×r weights."""
    if not r <= n <= LONGEST:
        return False
    m, k = n - r + 1, len(_matrices(n, r)[1])
    direct = m * m * r * r * inputs * outputs
    ours = k * k * inputs * outputs + inputs * k * n * (n + k) + outputs * m * k * (m + k)
    return direct >= GAIN * ours


def transformed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve square images without padding (a correlation, as in torch); the result is channels_last in memory."""
    images, inputs, n, _ = x.shape
    outputs, r = weight.shape[0], weight.shape[2]
    A, B, G = map(torch.from_numpy, _matrices(n, r))
    m, k = A.shape
    # Sides are the first dimensions: each transform is one matrix product, and the products over channels need no copy.
    X = _both(B, x.permute(2, 3, 0, 1).contiguous()).view(k * k, images, inputs)
    W = _both(G, weight.permute(2, 3, 1, 0).contiguous()).view(k * k, inputs, outputs)
    y = _both(A, torch.bmm(X, W).view(k, k, images, outputs)).view(m, m, images, outputs)
    if bias is not None:
        y = y + bias
    return y.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)


def _both(matrix: Tensor, lines: Tensor) -> Tensor:
    """Apply a matrix along the first and along the second dimension."""
    rows, first, second = len(matrix), *lines.shape[:2]
    return torch.matmul(matrix, torch.mm(matrix, lines.view(first, -1)).view(rows, second, -1))


@functools.cache
def _matrices(n: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return A, B, G of y = A((G w) ∘ (B x)), yᵢ = Σⱼ wⱼ xᵢ₊ⱼ."""
    # numpy arrays: a cached tensor made in `torch.inference_mode` or on another default device could not be reused.
    m = n - r + 1
    A: list[Matrix] = []
    B: list[Matrix] = []
    G: list[Matrix] = []
    for frequency in range(n // 2 + 1):
        angle = 2 * math.pi * frequency * np.arange(n) / n
        c, s = np.cos(angle), np.sin(angle)
        if 2 * frequency % n == 0:  # the transform is real at this frequency
            A += [c[:m] / n]
            B += [c]
            G += [c[:r]]
            continue
        # With x's transform a − ib and w's u − iv, y's is (au + bv) + i(av − bu), and (a − b)(u + v) holds the rest.
        B += [c, s, c - s]
        G += [c[:r], s[:r], (c + s)[:r]]
        A += [2 / n * (c + s)[:m], 2 / n * (c - s)[:m], -2 / n * s[:m]]
    return np.stack(A, 1).astype(np.float32), np.stack(B).astype(np.float32), np.stack(G).astype(np.float32)
