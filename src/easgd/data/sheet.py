"""A contact sheet: a few images of every class in one picture, to inspect a data file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from easgd.data.format import Bytes, ImageFile
from easgd.data.transforms import check_crop, cut, random_crops
from easgd.errors import refuse

_GAP = 4
_MOST_CLASSES = 40


def contact_sheet(
    file: ImageFile,
    out: str | Path,
    *,
    columns: int = 12,
    crop: int | None = None,
    flip: bool = False,
    seed: int = 0,
) -> Path:
    """Write a PNG with a labelled row for each of the first 40 classes; return its path.

    `crop` and `flip` show the images as the network sees them.
    """
    if not 1 <= columns <= 100:
        raise refuse("columns", columns, "must be 1..100", "use 12")
    if crop is not None:
        check_crop(file, crop)
    rng = np.random.default_rng(seed)
    rows = [_images_of(file, label, columns, crop, flip, rng) for label in range(min(len(file.classes), _MOST_CLASSES))]
    cell = _cell(rows)
    font = ImageFont.load_default(14)
    margin = 12 + int(max(font.getlength(name) for name in file.classes[: len(rows)]))
    width = margin + columns * (cell + _GAP)
    size = file.size_text().replace("×", "x")  # the built-in font has no ×
    title = f"{file.name}-{file.split}: {file.count} images {size}, {len(file.classes)} classes"
    sheet = Image.new("RGB", (max(width, 16 + int(font.getlength(title))), 28 + len(rows) * (cell + _GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((8, 6), title, "black", font)
    for r, images in enumerate(rows):
        top = 28 + r * (cell + _GAP)
        draw.text((6, top + cell // 2 - 8), file.classes[r], "black", font)
        for c, image in enumerate(images):
            picture = _fit(image, cell)
            left = margin + c * (cell + _GAP)
            sheet.paste(picture, (left + (cell - picture.width) // 2, top + (cell - picture.height) // 2))
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, "PNG")
    return path


def _images_of(
    file: ImageFile, label: int, count: int, crop: int | None, flip: bool, rng: np.random.Generator
) -> list[Bytes]:
    rows = np.flatnonzero(file.labels == label)[:count]
    if len(rows) and (crop is not None or (flip and file.shape is not None)):
        images = cut(file, rows, random_crops(file, rows, crop, flip, rng)).permute(0, 2, 3, 1).numpy()
        return list(np.rint(images * 255).astype(np.uint8))
    return [file.image(int(row)) for row in rows]


def _cell(rows: list[list[Bytes]]) -> int:
    """Return the size of a cell: small images are enlarged to about 64 pixels, large ones shrunk to 128."""
    largest = max((max(image.shape[:2]) for images in rows for image in images), default=64)
    return largest * max(1, 64 // largest) if largest <= 128 else 128


def _fit(image: Bytes, cell: int) -> Image.Image:
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] != 3 else image).convert("RGB")
    scale = cell / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    # Nearest when enlarging: single pixels stay visible.
    return picture.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BILINEAR)
