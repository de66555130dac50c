"""Generated images of any shape, for measurements and tests, in classes that a network can learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from easgd.data.store import path_of
from easgd.data.write import Writer
from easgd.errors import refuse

_BLOCK = 1024


def make_synthetic(
    count: int = 10_000,
    size: int = 32,
    channels: int = 3,
    classes: int = 10,
    seed: int = 0,
    name: str = "synthetic",
    split: str = "train",
    path: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Path:
    """Write `count` square images, each its class's smooth pattern plus noise; return the path.

    The file is `path`, by default the data folder's file of this name and split. The patterns depend on `seed`, the
    noise on `seed` and `split`, so training and test images come from the same distribution.
    """
    for what, value in (("count", count), ("size", size), ("channels", channels), ("classes", classes)):
        if value < 1:
            raise refuse(what, value, "must be at least 1", "use a positive number")
    patterns = _patterns(np.random.default_rng(seed), classes, size, channels)
    rng = np.random.default_rng([seed, *split.encode()])
    path = path or path_of(name, split)
    names = [f"class{i}" for i in range(classes)]
    with Writer(
        path, name=name, split=split, classes=names, channels=channels, shape=(size, size), source=f"seed {seed}"
    ) as out:
        for start in range(0, count, _BLOCK):
            progress(start, count, f"{name}-{split}")
            labels = rng.integers(classes, size=min(_BLOCK, count - start))
            noise = rng.integers(-60, 61, size=(len(labels), size, size, channels), dtype=np.int16)
            out.add_many(np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8), labels)
    return path


def _patterns(rng: np.random.Generator, classes: int, size: int, channels: int) -> npt.NDArray[np.int16]:
    # One plane wave per class and channel: still recognisable after a crop, and its mirror image is another wave.
    axis = np.arange(size) / size
    waves = rng.uniform(-3, 3, (2, classes, channels))
    phase = rng.uniform(0, 2 * np.pi, (classes, channels))
    grid = axis[:, None, None, None] * waves[0] + axis[:, None, None] * waves[1]
    patterns = 128 + 80 * np.sin(2 * np.pi * grid + phase)
    moved: npt.NDArray[np.int16] = np.moveaxis(patterns, 2, 0).astype(np.int16)
    return moved
