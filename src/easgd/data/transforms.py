"""Crop, flip and scale images to [0, 1], a batch at a time (supplement, "Data preprocessing")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from easgd.data.format import ImageFile, Ints
from easgd.errors import refuse


@dataclass(frozen=True)
class Crops:
    """The crop of each image of a batch: `height` × `width` pixels from (tops, lefts), mirrored where `flips`."""

    height: int
    width: int
    tops: Ints
    lefts: Ints
    flips: npt.NDArray[np.bool_]


def random_crops(file: ImageFile, rows: Ints, crop: int | None, flip: bool, rng: np.random.Generator) -> Crops:
    """Draw a crop and a flip for each image; all positions inside the image are equally likely."""
    heights, widths, height, width = _extents(file, rows, crop)
    tops = rng.integers(heights - height + 1)
    lefts = rng.integers(widths - width + 1)
    flips = rng.integers(2, size=len(rows)).astype(bool) if flip else np.zeros(len(rows), bool)
    return Crops(height, width, tops, lefts, flips)


def center_crops(file: ImageFile, rows: Ints, crop: int | None) -> Crops:
    """Return the middle of each image, not flipped: for measuring losses and errors."""
    heights, widths, height, width = _extents(file, rows, crop)
    return Crops(height, width, (heights - height) // 2, (widths - width) // 2, np.zeros(len(rows), bool))


def _extents(file: ImageFile, rows: Ints, crop: int | None) -> tuple[Ints, Ints, int, int]:
    _, heights, widths = file.places(rows)
    if crop is None:
        assert file.shape is not None, "check_crop refuses this"
        return heights, widths, *file.shape
    return heights, widths, crop, crop


def check_crop(file: ImageFile, crop: int | None) -> None:
    """Refuse a crop that does not fit into every image of the file."""
    if crop is None and file.shape is None:
        raise refuse("crop", crop, f"the images of {file.path.name} vary in size", "give the size of the crop")
    if crop is not None and crop > file.smallest:
        raise refuse(
            "crop", crop, f"{file.path.name} has sides of {file.smallest} pixels", f"use {file.smallest} or less"
        )


def cut(file: ImageFile, rows: Ints, crops: Crops) -> Tensor:
    """Return the crops as float32 [batch, channels, height, width] in [0, 1], in channels_last memory."""
    # Imported here: numba takes a second to import, and the commands that only inspect files do not need it.
    from easgd.data.crop_kernel import crop_into

    starts, heights, widths = file.places(rows)
    inside = (crops.tops >= 0) & (crops.tops + crops.height <= heights)
    inside &= (crops.lefts >= 0) & (crops.lefts + crops.width <= widths)
    if not inside.all():
        raise IndexError("a crop lies outside its image")  # the kernel would read other memory
    out = np.empty((len(rows), crops.height, crops.width * file.channels), np.float32)
    crop_into(file.pixels, starts, widths, crops.tops, crops.lefts, crops.flips, (0,) * file.channels, out)
    images = torch.from_numpy(out).view(len(rows), crops.height, crops.width, file.channels)
    return images.permute(0, 3, 1, 2)


def labels_of(file: ImageFile, rows: Ints) -> Tensor:
    """Return the labels of `rows` as int64, which torch's losses need."""
    return torch.from_numpy(file.labels[rows].astype(np.int64))
