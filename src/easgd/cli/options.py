"""Options that several commands have."""

from __future__ import annotations

import argparse
from typing import NoReturn

from easgd.errors import SettingError, refuse


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, as everywhere in this program."""

    def error(self, message: str) -> NoReturn:
        """Refuse what cannot be read."""
        raise SettingError(f"{message}; see `{self.prog} --help`")


def parse_jobs(text: str | None) -> int | None:
    """Read `--jobs`; None leaves it to the machine's cores."""
    if text is not None and (not text.isdecimal() or not int(text)):
        raise refuse("--jobs", text, "it takes a whole number ≥ 1", "write --jobs 2")
    return int(text) if text else None


def check_flag(word: str) -> bool:
    """Refuse `--flag=value`; True otherwise."""
    name, equals, _ = word.partition("=")
    if equals:
        raise SettingError(f"{word!r}: {name} takes no value; write {name} alone")
    return True
