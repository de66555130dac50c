"""The paper's networks, built from their strings (section 5, "Experimental setup"), and two small ones for digits.

All workers and the center must start from one point: from different random points the method stays in the phase where
symmetry is broken (the paper's footnote to "Experimental setup"). So every network has its own seeded generator: the
same call gives the same parameters in every process and does not touch torch's global generator.

Weights are uniform in ±gain/√fan-in. Gain 1 is the default of Torch7, which the paper used, and of PyTorch. `gain=HE`
(He et al., 2015) keeps the size of activations through layers of rectified units; on CIFAR, training leaves its first
plateau in less than half the steps. Networks return logits; the loss (`torch.nn.functional.cross_entropy`) applies the
log-softmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from easgd.models.convolution import Conv2d
from easgd.models.notation import Layer, Shape, parse
from easgd.models.pooling import MaxPoolReLU

CIFAR = "(3,28)C(64,24)P(64,12)C(128,8)P(128,4)C(64,2)D(256,1)S(10,1)"
IMAGENET = "(3,221)C(96,108)P(96,36)C(256,32)P(256,16)C(384,14)C(384,13)C(256,12)P(256,6)D(4096,1)D(4096,1)S(1000,1)"
DIGITS_CONV = "(1,8)C(16,6)P(16,3)C(32,2)L(64,1)S(10,1)"
DIGITS_MLP = "(1,8)L(64,1)S(10,1)"

HE = math.sqrt(6)


class Dropout(nn.Module):
    """Dropout with its own generator, so that each of many replicas in one process is reproducible.

    With `generator = None` it draws from torch's global generator, as `torch.nn.Dropout` does.
    """

    def __init__(self, rate: float = 0.5, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.rate = rate
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * keep.div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class Net(nn.Module):
    """A network built from `notation`: takes images [batch, channels, size, size] in [0, 1], returns logits."""

    def __init__(self, notation: str) -> None:
        super().__init__()
        layers = parse(notation)
        self.notation = notation
        self.input_shape: Shape = layers[0].source
        self.layers = nn.Sequential()
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            self.layers.extend(_modules(layer, following))

    def forward(self, images: Tensor) -> Tensor:
        channels, size = self.input_shape.channels, self.input_shape.size
        if images.shape[1:] != (channels, size, size):
            raise ValueError(f"images of shape {tuple(images.shape[1:])} for a network that takes {self.input_shape}")
        # Convolutions use the memory format of their input, so channels_last images are enough for the speed. The
        # parameters stay contiguous: they can be packed into one flat vector without a copy.
        logits: Tensor = self.layers(images.contiguous(memory_format=torch.channels_last))
        return logits


def build(notation: str, *, bias: float = 0.0, seed: int = 0, gain: float = 1.0) -> Net:
    """Build the network a string describes, biases at `bias`, weights drawn from `seed` within ±gain/√fan-in.

    >>> sum(p.numel() for p in build("(1,8)L(64,1)S(10,1)").parameters())
    4810
    """
    # On the meta device first: otherwise torch would draw default weights from its global generator.
    with torch.device("meta"):
        net = Net(notation)
    net.to_empty(device="cpu")
    _draw(net, bias, seed, gain)
    return net


def _modules(layer: Layer, following: Layer | None) -> list[nn.Module]:
    match layer.kind:
        case "C":
            conv = Conv2d(layer.source.channels, layer.target.channels, layer.kernel, layer.stride)
            # ReLU is monotone: it commutes with max pooling, and after it there is a quarter of the work.
            # In place is safe: neither convolution nor a linear layer needs its own output in backward.
            return [conv] if following is not None and following.kind == "P" else [conv, nn.ReLU(inplace=True)]
        case "P":
            return [MaxPoolReLU(layer.kernel, layer.stride)]
        case _:
            linear = nn.Linear(layer.source.features, layer.target.channels)
            activation: list[nn.Module] = [] if layer.kind == "S" else [nn.ReLU(inplace=True)]
            dropout: list[nn.Module] = [Dropout(0.5)] if layer.kind == "D" else []
            return [nn.Flatten(), linear, *activation, *dropout]


@torch.no_grad()
def _draw(net: nn.Module, bias: float, seed: int, gain: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            bound = gain / math.sqrt(module.weight[0].numel())
            module.weight.uniform_(-bound, bound, generator=generator)
            if module.bias is not None:
                module.bias.fill_(bias)


def seed_dropout(net: nn.Module, seed: int) -> None:
    """Give every dropout layer of `net` a generator seeded with `seed`, so that its next forward passes repeat."""
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, Dropout):
            module.generator = generator


def cifar(seed: int = 0, gain: float = 1.0) -> Net:
    """Return the paper's 7-layer CIFAR network: 351,946 parameters, biases 0, input 3×28×28."""
    return build(CIFAR, bias=0.0, seed=seed, gain=gain)


def imagenet(seed: int = 0, gain: float = 1.0) -> Net:
    """Return the paper's 11-layer ImageNet network: biases 0.1, input 3×221×221."""
    return build(IMAGENET, bias=0.1, seed=seed, gain=gain)


def digits_conv(seed: int = 0, gain: float = 1.0) -> Net:
    """Return a small convolutional network without dropout for 8×8 digits: 11,146 parameters."""
    return build(DIGITS_CONV, bias=0.0, seed=seed, gain=gain)


def digits_mlp(seed: int = 0, gain: float = 1.0) -> Net:
    """Return a network with one hidden layer for 8×8 digits: 4,810 parameters."""
    return build(DIGITS_MLP, bias=0.0, seed=seed, gain=gain)
