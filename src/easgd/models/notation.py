"""The paper's one-line description of a network, read as its definition ("Experimental setup", section 5).

    (3,28)C(64,24)P(64,12)C(128,8)P(128,4)C(64,2)D(256,1)S(10,1)

`(c,y)` is the shape after a layer: c channels of y by y pixels. `C` is a convolution with bias, `P` max pooling, `D` a
linear layer with dropout 0.5, `S` the linear layer before the softmax. `L` is an addition of this library: a linear
layer without dropout, for deterministic demos. Every layer but `S` ends in a rectified linear unit.

The string names shapes, not kernels. They follow from the shapes by two rules:

- Convolution, n to m pixels, no padding: the smallest stride s whose kernel k = n − (m − 1)s covers the input exactly
  and is neither smaller than the stride (pixels would be skipped) nor larger than 11. Hence 221 to 108 is 7×7 with
  stride 2: stride 1 would need 114×114. A 6×6 kernel would also give 108 but not read the last column.
- Pooling, n to m pixels: adjacent windows of w = ⌊n/m⌋; no other w leaves fewer pixels unread.

To use another kernel, write it: `C6/2(96,108)` is a 6×6 kernel with stride 2, `P3/2(96,53)` overlapping pooling. A
shape that no kernel can produce is refused. This module does not import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from easgd.errors import SettingError, refuse

LARGEST_KERNEL = 11

_LAYER = re.compile(r"([CPDSL])(?:(\d{1,9})(?:/(\d{1,9}))?)?\((\d{1,9}),(\d{1,9})\)")
_INPUT = re.compile(r"\((\d{1,9}),(\d{1,9})\)")


@dataclass(frozen=True)
class Shape:
    """`channels` planes of `size` by `size` pixels."""

    channels: int
    size: int

    @property
    def features(self) -> int:
        return self.channels * self.size * self.size

    def __str__(self) -> str:
        return f"({self.channels},{self.size})"


@dataclass(frozen=True)
class Layer:
    """One layer and the shapes it maps between; `kernel` and `stride` are 0 for linear layers."""

    kind: str
    source: Shape
    target: Shape
    kernel: int = 0
    stride: int = 0


def parse(notation: str) -> list[Layer]:
    """Return the layers of a network's string, with their kernels; refuse shapes that do not fit together.

    >>> [f"{layer.kind}{layer.kernel}/{layer.stride}" for layer in parse("(3,221)C(96,108)P(96,36)S(10,1)")]
    ['C7/2', 'P3/3', 'S0/0']
    """
    text = re.sub(r"\s+", "", notation)
    start = _INPUT.match(text)
    if start is None:
        raise refuse(
            "network", _short(notation), "must begin with its input (channels,size)", "e.g. (3,28)C(64,24)S(10,1)"
        )
    shape = _shape(start[1], start[2], start[0])
    layers: list[Layer] = []
    position = start.end()
    while position < len(text):
        found = _LAYER.match(text, position)
        if found is None:
            raise refuse(
                "network",
                _short(notation),
                f"cannot read it from {_short(text[position:])} on",
                "layers are C, P, D, S or L(channels,size)",
            )
        kind, kernel, stride, channels, size = found.groups()
        if layers and layers[-1].kind == "S":
            raise refuse("network", _short(notation), f"{found[0]} follows S", "S is the output and comes last")
        layers.append(_layer(found[0], kind, shape, _shape(channels, size, found[0]), kernel, stride))
        shape = layers[-1].target
        position = found.end()
    if not layers or layers[-1].kind != "S":
        raise refuse("network", _short(notation), "has no output layer", "end it with S(classes,1)")
    return layers


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def _shape(channels: str, size: str, where: str) -> Shape:
    if int(channels) < 1 or int(size) < 1:
        raise refuse("layer", where, "channels and size must be at least 1", "correct the shape")
    return Shape(int(channels), int(size))


def _layer(text: str, kind: str, source: Shape, target: Shape, kernel: str | None, stride: str | None) -> Layer:
    if kind in "DSL":
        if target.size != 1 or kernel is not None:
            raise refuse(
                "layer", text, "a linear layer has no kernel and one pixel", f"write {kind}({target.channels},1)"
            )
        return Layer(kind, source, target)
    if kind == "P" and target.channels != source.channels:
        raise refuse(
            "layer", text, f"pooling keeps the {source.channels} channels it is given", f"write P({source.channels},…)"
        )
    if kernel is not None:
        # Default strides as in torch: the window's width for pooling, 1 for a convolution.
        window = int(kernel)
        step = int(stride) if stride is not None else (window if kind == "P" else 1)
        _check_claim(text, source, target, window, step)
        return Layer(kind, source, target, window, step)
    derived = _convolution(source.size, target.size) if kind == "C" else _pooling(source.size, target.size)
    if derived is None:
        raise _impossible(text, source)
    return Layer(kind, source, target, *derived)


def _convolution(n: int, m: int) -> tuple[int, int] | None:
    for stride in range(1, LARGEST_KERNEL + 1):
        kernel = n - (m - 1) * stride
        if stride <= kernel <= LARGEST_KERNEL:
            return kernel, stride
    return None


def _pooling(n: int, m: int) -> tuple[int, int] | None:
    window = n // m
    return (window, window) if window >= 1 and n // window == m else None


def _check_claim(text: str, source: Shape, target: Shape, kernel: int, stride: int) -> None:
    if kernel < 1 or stride < 1 or kernel > source.size:
        raise refuse("layer", text, f"kernel and stride must fit into {source.size} pixels", "correct the kernel")
    size = (source.size - kernel) // stride + 1
    if size != target.size:
        raise refuse(
            "layer", text, f"this kernel leaves {size} of {source.size} pixels, not {target.size}", f"claim {size}"
        )


def _impossible(text: str, source: Shape) -> SettingError:
    return refuse(
        "layer",
        text,
        f"no kernel of at most {LARGEST_KERNEL} pixels leads there from {source}",
        "correct the shape or name the kernel, as in C7/2(96,108)",
    )
