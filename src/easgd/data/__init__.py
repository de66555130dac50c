"""Data sets as memory-mapped files, the paper's sampling and preprocessing.

Names are imported on first use, so that `import easgd.data` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from easgd.lazy import exports

if TYPE_CHECKING:
    from easgd.data.cifar10 import make_cifar10 as make_cifar10
    from easgd.data.digits import make_digits as make_digits
    from easgd.data.folder import make_folder as make_folder
    from easgd.data.format import ImageFile as ImageFile
    from easgd.data.loader import Loader as Loader
    from easgd.data.loader import evaluation as evaluation
    from easgd.data.sampler import CIFAR10 as CIFAR10
    from easgd.data.sampler import DIGITS as DIGITS
    from easgd.data.sampler import IMAGENET as IMAGENET
    from easgd.data.sampler import Sampler as Sampler
    from easgd.data.sampler import Scheme as Scheme
    from easgd.data.sharding import ShardedLoader as ShardedLoader
    from easgd.data.sharding import shard as shard
    from easgd.data.store import available as available
    from easgd.data.store import home as home
    from easgd.data.store import load as load
    from easgd.data.store import path_of as path_of
    from easgd.data.synthetic import make_synthetic as make_synthetic
    from easgd.data.write import Writer as Writer

__getattr__, __dir__ = exports(
    __name__,
    {
        "cifar10": "make_cifar10",
        "digits": "make_digits",
        "folder": "make_folder",
        "format": "ImageFile",
        "loader": "Loader evaluation",
        "sampler": "CIFAR10 DIGITS IMAGENET Sampler Scheme",
        "sharding": "ShardedLoader shard",
        "store": "available home load path_of",
        "synthetic": "make_synthetic",
        "write": "Writer",
    },
)
