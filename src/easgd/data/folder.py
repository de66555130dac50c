"""Any folder of images in ImageNet's layout, `train/<class>/*.jpg`, as data files (supplement, "Data preprocessing").

Images are resized so that their shorter side has `size` pixels, and written one by one: only a few are in memory at a
time. They are written in a seeded random order: the sampler takes neighbouring images together, and in the order of the
folder these would all be of one class.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from easgd.data.format import Bytes
from easgd.data.store import path_of
from easgd.data.write import Writer
from easgd.errors import refuse
from easgd.extras import require

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}
SPLITS = {"train": "train", "val": "test", "validation": "test", "test": "test"}
LONGEST = 32  # longer over shorter side; a strip of 1 × 10,000 pixels would be resized to gigabytes
Progress = Callable[[int, int, str], None]


@dataclass
class MadeSplit:
    """A data file made from a folder: its path, its number of images, and the files that could not be read."""

    path: Path
    count: int = 0
    bad: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Picture:
    path: Path
    label: int


def make_folder(
    folder: str | Path,
    *,
    name: str | None = None,
    size: int = 256,
    square: bool = False,
    bad: str = "skip",
    seed: int = 0,
    threads: int = 2,
    progress: Progress = lambda done, total, what: None,
) -> list[MadeSplit]:
    """Write `<name>-train` and, if there is a `val` or `test` folder, `<name>-test`.

    `square` keeps only the middle `size` × `size` pixels, so that all images have one size. All images are converted to
    RGB. A file that is not an image is skipped and listed in the result; with `bad="error"` it raises a `SettingError`,
    and nothing is written.
    """
    require("PIL", "data", "a folder of images")
    root = Path(folder)
    if bad not in ("skip", "error"):
        raise refuse("bad", bad, "must be skip or error", "choose what happens to files that are not images")
    if size < 1:
        raise refuse("size", size, "the shorter side has at least 1 pixel", "the paper has 256")
    splits = _splits(root)
    classes = _classes(splits["train"])
    listed = {split: _list(path, classes) for split, path in splits.items()}
    title = name or root.resolve().name
    made = [MadeSplit(path_of(title, split)) for split in listed]
    # All writers end together: if one split fails, no file appears.
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata, once per image
        writers = [
            stack.enter_context(
                Writer(
                    result.path,
                    name=title,
                    split=split,
                    classes=classes,
                    channels=3,
                    shape=(size, size) if square else None,
                    source=f"folder, shorter side {size}",
                )
            )
            for split, result in zip(listed, made, strict=True)
        ]
        for (split, pictures), result, out in zip(listed.items(), made, writers, strict=True):
            order = np.random.default_rng([seed, *split.encode()]).permutation(len(pictures))
            shuffled = (pictures[i] for i in order)
            for number, (picture, outcome) in enumerate(_decoded(shuffled, size, square, threads), start=1):
                progress(number, len(pictures), f"{split} images")
                if isinstance(outcome, str):
                    _note_bad(result, picture, outcome, bad)
                else:
                    out.add(outcome, picture.label)
                    result.count += 1
    return made


def _note_bad(result: MadeSplit, picture: _Picture, reason: str, policy: str) -> None:
    if policy == "error":
        raise refuse("image", picture.path, reason, "remove the file, or skip such files with --bad skip")
    result.bad.append(f"{picture.path}: {reason}")


def _splits(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        raise refuse("folder", root, "there is no such folder", "give the folder that holds train/<class>/*.jpg")
    found = {SPLITS[p.name]: p for p in sorted(root.iterdir()) if p.is_dir() and p.name in SPLITS}
    if "train" in found:
        return dict(sorted(found.items(), reverse=True))
    return {"train": root}  # the class folders are directly in it


def _classes(folder: Path) -> list[str]:
    classes = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise refuse("folder", folder, "it has no class folders", "lay the images out as train/<class>/*.jpg")
    return classes


def _list(folder: Path, classes: list[str]) -> list[_Picture]:
    """List the images of a split by class; refuse unknown and empty classes."""
    pictures: list[_Picture] = []
    for name in _classes(folder):
        if name not in classes:
            raise refuse(
                "class", folder / name, "the training set has no such class", "remove the folder or add images"
            )
        files = sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
        if not files:
            raise refuse("class folder", folder / name, "it has no images", "remove it or add images")
        pictures += [_Picture(path, classes.index(name)) for path in files]
    return pictures


def _decoded(
    pictures: Iterator[_Picture], size: int, square: bool, threads: int
) -> Iterator[tuple[_Picture, Bytes | str]]:
    """Decode on threads, a few images ahead; yield in order the image, or the reason why it cannot be read."""
    pending: deque[tuple[_Picture, Future[Bytes | str]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for picture in pictures:
                pending.append((picture, pool.submit(_decode, picture.path, size, square)))
                if len(pending) > 4 * threads:
                    first, future = pending.popleft()
                    yield first, future.result()
            while pending:
                first, future = pending.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _decode(path: Path, size: int, square: bool) -> Bytes | str:
    from PIL import Image

    try:
        with Image.open(path) as opened:
            width, height = opened.size
            scale = size / min(width, height)
            target = (max(size, round(width * scale)), max(size, round(height * scale)))
            if max(target) > LONGEST * size:
                return f"its sides, {width} and {height}, differ by more than {LONGEST} times"
            picture = opened.convert("RGB").resize(target, Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        return str(error).splitlines()[0].replace(str(path), path.name) if str(error) else type(error).__name__
    if square:
        left, top = (target[0] - size) // 2, (target[1] - size) // 2
        picture = picture.crop((left, top, left + size, top + size))
    return np.asarray(picture)
