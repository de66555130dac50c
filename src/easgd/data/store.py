"""Data sets by name: where their files are on this machine, and how to open one."""

from __future__ import annotations

import os
from pathlib import Path

from easgd.data.format import SUFFIX, ImageFile
from easgd.errors import SettingError, refuse


def home() -> Path:
    """Return the folder of the data files: `$EASGD_DATA`, or `~/.cache/easgd`."""
    named = os.environ.get("EASGD_DATA")
    return Path(named) if named else Path.home() / ".cache" / "easgd"


def path_of(name: str, split: str = "train") -> Path:
    """Return the path of the file of a data set's `split`, whether or not it exists."""
    if Path(name).name != name:
        raise refuse("data set", repr(name), "a name has no folders in it", f"give a name, or a file NAME{SUFFIX}")
    return home() / f"{name}-{split}{SUFFIX}"


def load(name: str = "digits", split: str = "train") -> ImageFile:
    """Open a data set by its name or by the path of its file.

    `digits` is created if it is missing; for others a `SettingError` says how to make them.

    >>> load("digits", "test")
    ImageFile(digits-test: 364 images 8×8×1, 10 classes)
    """
    path = Path(name) if name.endswith(SUFFIX) else path_of(name, split)
    if not path.exists():
        if name == "digits":
            from easgd.data.digits import make_digits

            make_digits()
        else:
            raise _missing(name, split)
    return ImageFile(path)


def _missing(name: str, split: str) -> SettingError:
    """Return the error for a data set that is not there, with the names that are."""
    whole = sorted({"digits"} | {found.rpartition("-")[0] for found in available()})
    command = name if name in ("cifar10", "synthetic") else "--help"
    part = f" (its part {split!r})" if name in whole else ""
    return refuse("data set", name, f"not found{part}; here are {', '.join(whole)}", f"run `easgd data make {command}`")


def available() -> list[str]:
    """Return the names of the data sets of this machine, as `name-split`."""
    folder = home()
    return sorted(p.name.removesuffix(SUFFIX) for p in folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
