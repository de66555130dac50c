"""Command lines from declarations: every field of a dataclass of `easgd.settings` is a flag or a positional argument.

argparse splits the line and prints the help; values stay texts until the declaration converts and checks them. What is
wrong becomes a `SettingError` of one line.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, get_origin

from easgd.errors import SettingError, refuse, unknown
from easgd.settings import Field, assignment, fields_of, literal

T = TypeVar("T")
_METAVARS: dict[object, str] = {int: "N", float: "X", Path: "PATH"}


class LineParser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see `{self.prog} --help`")


@dataclass(frozen=True)
class Command(Generic[T]):
    """A command: its name, the declaration of its options, and what `--help` says besides.

    `settings` is a second declaration whose fields are flags as well; `lists` lets them have several values, separated
    by commas, and leaves them out of the help.
    """

    name: str
    options: Callable[..., T]
    description: str
    examples: Sequence[str]
    notes: str = ""
    usage: str = ""
    """The arguments in the line "usage:", where argparse's own is too long or wrong."""
    settings: type | None = None
    lists: bool = False
    bare: bool = False
    """Whether the command may be called without arguments; otherwise it prints its help and exits with 2."""

    @property
    def fields(self) -> dict[str, Field]:
        return fields_of(self.options)

    def parser(self) -> LineParser:
        """Build the parser."""
        examples = "\n         ".join(f"easgd {example}" for example in self.examples)
        parser = LineParser(
            prog=f"easgd {self.name}", usage=f"%(prog)s {self.usage}" if self.usage else None,
            description=self.description, allow_abbrev=False, exit_on_error=False,
            epilog="\n\n".join(filter(None, (self.notes, f"example: {examples}"))),
            formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS,
        )  # fmt: skip
        groups: dict[str, Any] = {"": parser}
        for field in self._declared():
            hidden = self.lists and field.name not in self.fields
            title = "" if hidden else str(field.info.get("group", ""))
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            _add(groups[title], field, self.flags_of(field), hidden)
        return parser

    def _declared(self) -> list[Field]:
        return [*self.fields.values(), *(fields_of(self.settings).values() if self.settings else ())]

    def flags_of(self, field: Field) -> tuple[str, ...]:
        """Return the names of a field on the command line; a positional argument has its own name."""
        if field.info.get("positional"):
            return (field.name,)
        flags = tuple(field.info.get("flags") or (f"--{field.name.replace('_', '-')}",))
        return (*flags, field.info["plural"]) if self.lists and "plural" in field.info else flags

    def parse(self, argv: Sequence[str]) -> T:
        """Return the options of a command line."""
        return self.parse_all(argv)[0]

    def parse_all(self, argv: Sequence[str]) -> tuple[T, dict[str, Any]]:
        """Return the options of a command line and the settings among them, as texts or lists of texts."""
        parser = self.parser()
        if not argv and not self.bare:
            parser.print_help()
            sys.exit(2)
        try:
            found, extra = parser.parse_known_args(list(argv))
        except argparse.ArgumentError as error:
            raise self._refusal(error, argv) from None
        given, fields = vars(found), self.fields
        if extra:
            raise self._surplus(extra[0], given)
        options = {n: fields[n].convert(v, self.flags_of(fields[n])[0]) for n, v in given.items() if n in fields}
        if missing := [f for n, f in fields.items() if n not in options and f.default is dataclasses.MISSING]:
            remedy = f"`easgd {self.name} --help` shows an example"
            raise refuse(self.flags_of(missing[0])[0], "nothing", f"it must be given and is {missing[0].kind}", remedy)
        return self.options(**options), {n: self._setting(v) for n, v in given.items() if n not in fields}

    def _setting(self, value: Any) -> Any:
        """Return a setting as its text, the list of its texts, or, of a flag that may be repeated, a table."""
        if isinstance(value, list):
            pairs = [assignment(each) for each in value]
            return {name: [literal(v) for v in split(text)] if self.lists else literal(text) for name, text in pairs}
        if isinstance(value, bool):  # a flag that was given
            return [value] if self.lists else value
        return split(value) if self.lists else value

    def _refusal(self, error: argparse.ArgumentError, argv: Sequence[str]) -> SettingError:
        """Word what argparse has found: a flag without a value, or a value that a flag does not take."""
        names = (error.argument_name or "").split("/")
        field = next((f for f in self._declared() if set(names) <= set(self.flags_of(f))), None)
        if "explicit argument" in error.message or field is None:
            return SettingError(f"{names[-1]} takes no value; write {names[-1]} alone")
        shown = next((name for name in names if name in argv), names[0])
        return refuse(shown, "nothing", f"it takes {field.kind}", f"`easgd {self.name} --help` shows an example")

    def _surplus(self, word: str, given: Mapping[str, Any]) -> SettingError:
        """Word an argument that is left over."""
        if word.startswith("-"):
            known = [flag for field in self._declared() for flag in self.flags_of(field) if flag.startswith("-")]
            return unknown("option", word.partition("=")[0], [*known, "--help"])
        places = [field for field in self.fields.values() if field.info.get("positional")]
        if not places:
            return SettingError(f"{word!r}: {self.name} takes no arguments; see `easgd {self.name} --help`")
        name = places[-1].name
        return SettingError(f"{word!r}: one {name} at a time; {given.get(name)} was given before")


def _add(group: Any, field: Field, flags: Sequence[str], hidden: bool) -> None:
    """Add a field to a parser or a group of one."""
    kind, info, more = field.kinds[0], field.info, dict[str, Any]()
    if kind is bool:
        more["action"] = "store_true"
    else:
        more["metavar"] = info.get("metavar") or ("NAME" if field.choices else _METAVARS.get(kind, "TEXT"))
        if info.get("repeat"):
            more["action"] = "append"
        elif "nargs" in info or get_origin(kind) is tuple:
            more["nargs"] = info.get("nargs", "*")
        elif info.get("positional"):
            more["nargs"] = "?"
    if not info.get("positional"):
        more["dest"] = field.name
    group.add_argument(*flags, help=argparse.SUPPRESS if hidden else _help(field), **more)


def _help(field: Field) -> str:
    choices = f": {', '.join(field.choices)}" if field.choices else ""
    default = field.default
    plain = default in (None, (), "") or default is dataclasses.MISSING or isinstance(default, bool)
    shown = "" if plain else f" ({default:g})" if isinstance(default, float) else f" ({default})"
    return f"{field.info['help']}{choices}{shown}".replace("%", "%%")


def split(text: str) -> list[str]:
    """Split at commas, but not inside the parentheses of a network."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


@dataclass(frozen=True)
class CommandGroup:
    """Commands under one name, groups among them."""

    name: str
    description: str
    commands: Mapping[str, Command[Any] | CommandGroup]
    example: str
    notes: str = ""

    def find(self, argv: Sequence[str]) -> tuple[Command[Any], list[str]]:
        """Return the command that a line begins with, and the rest of the line."""
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(self.usage(), end="")
            sys.exit(0 if argv else 2)
        if argv[0] not in self.commands:
            raise unknown(f"{self.name} command", argv[0], self.commands)
        found, rest = self.commands[argv[0]], list(argv[1:])
        return found.find(rest) if isinstance(found, CommandGroup) else (found, rest)

    def usage(self) -> str:
        """Return the text of `--help`."""
        width = max(map(len, self.commands))
        rows = "\n".join(f"  {name:<{width}}  {command.description}" for name, command in self.commands.items())
        notes = f"{self.notes} " if self.notes else ""
        return (
            f"usage: easgd {self.name} COMMAND [options]\n\n{self.description}\n\ncommands:\n{rows}\n\n"
            f"{notes}`easgd {self.name} COMMAND --help` explains a command.\nexample: easgd {self.example}\n"
        )
