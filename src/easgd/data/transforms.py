"""Crops, flips and the [0, 1] scale, a batch at a time (supplement, "Data preprocessing").

All of it is numpy on one thread: it runs on background threads, where torch's own operations would start a second team
of OpenMP threads that fights the training thread for the cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from easgd.data.format import Bytes, ImageFile, Ints
from easgd.errors import refuse


@dataclass(frozen=True)
class Crops:
    """Where each image of a batch is cut: `height` × `width` pixels from (tops, lefts), mirrored where `flips`."""

    height: int
    width: int
    tops: Ints
    lefts: Ints
    flips: npt.NDArray[np.bool_]


def random_crops(file: ImageFile, rows: Ints, crop: int | None, flip: bool, rng: np.random.Generator) -> Crops:
    """Draw a crop and a flip for each image, every position that fits being equally likely."""
    heights, widths, height, width = _extents(file, rows, crop)
    tops = rng.integers(heights - height + 1)
    lefts = rng.integers(widths - width + 1)
    flips = rng.integers(2, size=len(rows)).astype(bool) if flip else np.zeros(len(rows), bool)
    return Crops(height, width, tops, lefts, flips)


def center_crops(file: ImageFile, rows: Ints, crop: int | None) -> Crops:
    """Return the middle of each image, unflipped: what training loss, test loss and test error are computed on."""
    heights, widths, height, width = _extents(file, rows, crop)
    return Crops(height, width, (heights - height) // 2, (widths - width) // 2, np.zeros(len(rows), bool))


def _extents(file: ImageFile, rows: Ints, crop: int | None) -> tuple[Ints, Ints, int, int]:
    heights, widths = file.extents(rows)
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


def cut(file: ImageFile, rows: Ints, crops: Crops) -> Bytes:
    """Copy the crops out of the map: uint8 [batch, height, width, channels]."""
    if file.images is None:
        pixels = np.empty((len(rows), crops.height, crops.width, file.channels), np.uint8)
        for i, (row, top, left) in enumerate(
            zip(rows.tolist(), crops.tops.tolist(), crops.lefts.tolist(), strict=True)
        ):
            pixels[i] = file.image(row)[top : top + crops.height, left : left + crops.width]
    else:
        pixels = _windows(file.images, crops)[rows, crops.tops, crops.lefts * file.channels]
        pixels = pixels.reshape(len(rows), crops.height, crops.width, file.channels)
    if crops.flips.any():
        # A pixel as one item of `channels` bytes: mirrored whole, which is twice as fast as byte by byte.
        whole = pixels.view(f"V{file.channels}")[..., 0]
        whole[crops.flips] = whole[crops.flips][:, :, ::-1]
    return pixels


def _windows(images: Bytes, crops: Crops) -> Bytes:
    """View all windows of all images: [image, top, left in bytes, height, width · channels], nothing copied.

    Indexing the first three axes then copies each crop as a few contiguous runs.
    """
    count, height, width, channels = images.shape
    run = crops.width * channels
    shape = (count, height - crops.height + 1, width * channels - run + 1, crops.height, run)
    image, line, _, byte = images.strides
    return np.lib.stride_tricks.as_strided(images, shape, (image, line, byte, line, byte), writeable=False)


def to_float(pixels: Bytes) -> Tensor:
    """Scale uint8 pixels to [0, 1]: float32 [batch, channels, height, width], channels_last in memory."""
    scaled = np.empty(pixels.shape, np.float32)
    np.divide(pixels, np.float32(255), out=scaled)
    return torch.from_numpy(scaled).permute(0, 3, 1, 2)


def labels_of(file: ImageFile, rows: Ints) -> Tensor:
    """Return the labels of `rows` as torch's losses want them."""
    return torch.from_numpy(file.labels[rows].astype(np.int64))
