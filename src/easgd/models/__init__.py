"""The paper's networks, and small ones for tests and demos.

Names are imported on first use, so that `import easgd.models` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from easgd.lazy import exports

if TYPE_CHECKING:
    from easgd.models.nets import CIFAR as CIFAR
    from easgd.models.nets import DIGITS_CONV as DIGITS_CONV
    from easgd.models.nets import DIGITS_MLP as DIGITS_MLP
    from easgd.models.nets import HE as HE
    from easgd.models.nets import IMAGENET as IMAGENET
    from easgd.models.nets import Dropout as Dropout
    from easgd.models.nets import Net as Net
    from easgd.models.nets import build as build
    from easgd.models.nets import cifar as cifar
    from easgd.models.nets import digits_conv as digits_conv
    from easgd.models.nets import digits_mlp as digits_mlp
    from easgd.models.nets import imagenet as imagenet
    from easgd.models.nets import seed_dropout as seed_dropout
    from easgd.models.notation import Layer as Layer
    from easgd.models.notation import Shape as Shape
    from easgd.models.notation import parse as parse
    from easgd.models.quadratic import Quadratic as Quadratic

__getattr__, __dir__ = exports(
    __name__,
    {
        "nets": "CIFAR DIGITS_CONV DIGITS_MLP HE IMAGENET Dropout Net build cifar digits_conv digits_mlp imagenet "
        "seed_dropout",
        "notation": "Layer Shape parse",
        "quadratic": "Quadratic",
    },
)
