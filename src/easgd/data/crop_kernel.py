"""The inner loop of preprocessing: crop, mirror and scale in one pass over memory, outside the interpreter lock.

numpy needs three passes and three times as long. torch would start a second team of OpenMP threads on the background
thread, which would compete with the training thread.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def crop_into(pixels, starts, widths, tops, lefts, flips, channels, out):  # type: ignore[no-untyped-def]
    """Write the crops of the images that begin at `starts` in the bytes `pixels` to `out`, as float32 in [0, 1].

    `out` is [batch, height, width · channels]. `channels` is a tuple with one item per channel: the compiler knows its
    length and unrolls the loop over it. Bounds are not checked; `easgd.data.transforms.cut` checks them.
    """
    batch, height, run = out.shape
    depth = len(channels)
    line = np.empty(run, np.float32)
    for i in range(batch):
        stride = widths[i] * depth
        at = starts[i] + tops[i] * stride + lefts[i] * depth
        for y in range(height):
            row = pixels[at : at + run]
            target = line if flips[i] else out[i, y]
            for x in range(run):
                target[x] = np.float32(row[x]) / np.float32(255)
            if flips[i]:
                # Unsigned indices: numba would test signed ones for counting from the end.
                for x in range(run // depth):
                    to, source = np.uint64(depth * x), np.uint64(run - depth - depth * x)
                    for c in range(depth):
                        out[i, y, to + np.uint64(c)] = line[source + np.uint64(c)]
            at += stride
