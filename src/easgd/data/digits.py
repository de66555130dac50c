"""1,797 handwritten digits of 8×8 grey pixels from scikit-learn (UCI, Alpaydin and Kaynak, 1998).

The set comes with scikit-learn and is made in a second, so demos and tests use it by default.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from easgd.data.store import path_of
from easgd.data.write import Writer
from easgd.extras import require

# Every fifth image of a class is a test image.
_TEST_EVERY = 5


def make_digits() -> list[Path]:
    """Write digits-train (1,433 images) and digits-test (364); return their paths."""
    data, labels = require("sklearn.datasets", "data", "the data set digits").load_digits(return_X_y=True)
    # Pixels are 0..16. The pipeline divides by 255, so 16 must become 255.
    images = np.rint(data.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    position = np.zeros(len(labels), np.int64)
    for digit in range(10):
        position[labels == digit] = np.arange((labels == digit).sum())
    test = position % _TEST_EVERY == 0
    paths = []
    for split, rows in (("train", ~test), ("test", test)):
        paths.append(path_of("digits", split))
        names = [str(digit) for digit in range(10)]
        with Writer(
            paths[-1], name="digits", split=split, classes=names, channels=1, shape=(8, 8), source="scikit-learn"
        ) as out:
            out.add_many(images[rows], labels[rows])
    return paths
