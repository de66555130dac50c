"""Crops and flips, pixel by pixel against a plain loop."""

import numpy as np
import pytest
import torch

from easgd.data import ImageFile, Writer
from easgd.data.transforms import Crops, center_crops, cut, random_crops
from easgd.errors import SettingError


def make(path, sizes, channels, shape):
    rng = np.random.default_rng(3)
    images = [rng.integers(256, size=(h, w, channels), dtype=np.uint8) for h, w in sizes]
    with Writer(path, name="t", split="train", classes=["a", "b"], channels=channels, shape=shape) as out:
        for i, image in enumerate(images):
            out.add(image, i % 2)
    return ImageFile(path), images


FILES = {
    "colour": ([(9, 11)] * 30, 3, (9, 11)),
    "grey": ([(9, 11)] * 30, 1, (9, 11)),
    "varying": ([(9 + i % 4, 11 - i % 3) for i in range(30)], 3, None),
}


@pytest.fixture(params=FILES)
def file_and_images(request, tmp_path):
    return make(tmp_path / "t.easgd", *FILES[request.param])


def plain_loop(images, rows, crops):
    """What is meant: one pixel after the other."""
    channels = images[0].shape[2]
    out = np.empty((len(rows), channels, crops.height, crops.width), np.float32)
    for i, row in enumerate(rows):
        for y in range(crops.height):
            for x in range(crops.width):
                source = crops.width - 1 - x if crops.flips[i] else x
                for c in range(channels):
                    pixel = images[row][crops.tops[i] + y, crops.lefts[i] + source, c]
                    out[i, c, y, x] = np.float32(pixel) / np.float32(255)
    return torch.from_numpy(out)


def test_random_crops_and_flips_are_the_plain_loops(file_and_images):
    file, images = file_and_images
    rows = np.array([4, 29, 0, 4, 17, 23, 8, 11])
    crops = random_crops(file, rows, 6, True, np.random.default_rng(0))
    assert crops.flips.any()
    assert not crops.flips.all()
    batch = cut(file, rows, crops)
    assert torch.equal(batch, plain_loop(images, rows, crops))
    assert batch.dtype == torch.float32
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_corners_and_whole_images(tmp_path):
    file, images = make(tmp_path / "t.easgd", *FILES["colour"])
    rows = np.array([0, 1, 2, 3])
    corners = Crops(6, 6, np.array([0, 0, 3, 3]), np.array([0, 5, 0, 5]), np.array([True, False, False, True]))
    assert torch.equal(cut(file, rows, corners), plain_loop(images, rows, corners))
    whole = random_crops(file, rows, None, False, np.random.default_rng(0))
    assert torch.equal(cut(file, rows, whole), plain_loop(images, rows, whole))


def test_every_position_and_flip_is_equally_likely(tmp_path):
    file, _ = make(tmp_path / "t.easgd", *FILES["colour"])
    rows = np.zeros(24_000, int)
    crops = random_crops(file, rows, 6, True, np.random.default_rng(1))
    counts = np.zeros((4, 6, 2), int)
    np.add.at(counts, (crops.tops, crops.lefts, crops.flips.astype(int)), 1)
    # 24,000 draws over 48 cells: 500 each, standard deviation 22
    assert counts.min() > 500 - 5 * 22
    assert counts.max() < 500 + 5 * 22


def test_center_crops(file_and_images):
    file, images = file_and_images
    rows = np.array([5, 6, 7])
    crops = center_crops(file, rows, 6)
    assert not crops.flips.any()
    assert [(int(top), int(left)) for top, left in zip(crops.tops, crops.lefts, strict=True)] == [
        ((images[r].shape[0] - 6) // 2, (images[r].shape[1] - 6) // 2) for r in rows
    ]
    assert torch.equal(cut(file, rows, crops), plain_loop(images, rows, crops))


def test_pixels_span_zero_to_one_exactly(tmp_path):
    with Writer(tmp_path / "t.easgd", name="t", split="train", classes=["a"], channels=1, shape=(16, 16)) as out:
        out.add(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 0)
    file, row = ImageFile(tmp_path / "t.easgd"), np.array([0])
    scaled = cut(file, row, center_crops(file, row, None)).flatten()
    assert scaled[0] == 0
    assert scaled[255] == 1
    assert torch.equal(scaled, torch.arange(256) / 255)


def test_nothing_outside_an_image_is_ever_read(file_and_images):
    file, images = file_and_images
    fits, row = np.array([0]), np.array([2])
    height, width = images[2].shape[:2]
    for tops, lefts in [(height - 5, 0), (0, width - 5), (-1, 0), (0, -1)]:
        with pytest.raises(IndexError, match="outside"):
            cut(file, row, Crops(6, 6, fits + tops, fits + lefts, np.array([False])))
    for bad in (30, -31 if file.images is None else -1):
        with pytest.raises(IndexError):
            cut(file, np.array([bad]), Crops(6, 6, fits, fits, np.array([False])))


def test_the_map_is_not_changed_by_flips(tmp_path):
    file, _ = make(tmp_path / "t.easgd", *FILES["grey"])
    rows = np.arange(30)
    cut(file, rows, Crops(9, 11, np.zeros(30, int), np.zeros(30, int), np.ones(30, bool)))
    file.verify()


@pytest.mark.parametrize(("kind", "crop", "said"), [("colour", 10, "sides of 9"), ("varying", None, "vary in size")])
def test_crops_that_do_not_fit_are_refused(tmp_path, kind, crop, said):
    from easgd.data import Loader, Scheme

    file, _ = make(tmp_path / "t.easgd", *FILES[kind])
    with pytest.raises(SettingError, match=said):
        Loader(file, Scheme(batch=4, loaders=2, chunk=4, crop=crop))
