"""Compile the loops of the exchange and of the codecs, once for this checkout: numba keeps them beside their files.

`make setup` runs it, so that neither the first run nor the tests, which start many processes at a time, compile them.
"""

import torch

from easgd import EASGD, Downpour, MDownpour, averaged
from easgd.center.fused_rules import warm
from easgd.compress import Codec
from easgd.compress.codec import NAMES


def main() -> None:
    for method in (EASGD(), averaged(EASGD()), Downpour(), MDownpour()):
        warm(method)
    vector = torch.linspace(-1, 1, 2000)
    for codec in map(Codec.named, NAMES):
        packed = codec.encode(vector)
        codec.decode(packed, vector.numel())
        codec.decode_add_(packed, vector.clone())
        codec.encode_rest_(vector.clone())


if __name__ == "__main__":
    main()
