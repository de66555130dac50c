"""Settings from one declaration: a frozen dataclass whose annotations carry type and bound, whose fields carry help.

`Checked` makes a dataclass check itself, from Python, TOML, JSON or the command line alike; `easgd.cli.parsing` makes
its flags. msgspec converts and compares; this module puts its findings into one line: value, bound, remedy.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from easgd.errors import SettingError, refuse, unknown

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]

C = TypeVar("C")
DEFAULT = "leave it out for the default"
_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a path",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def option(help_: str, default: Any = None, **more: Any) -> Any:
    """Declare a field.

    Args:
        help_: the line of `--help`.
        default: its default; `dataclasses.MISSING` where a value must be given.
        more: `group` (title in `--help`), `flags` (its names on the command line), `plural` (one more where several
            values are taken), `metavar`, `positional`, `nargs`,
            `repeat`, `kind` (its type in words), `remedy` (the end of an error), `choices` (a function that returns
            the names it may have), `known` (the same where these are not all).
    """
    return dataclasses.field(default=default, metadata={"help": help_, **more})


@dataclass(frozen=True)
class Field:
    """One setting: its type with bounds, its default, and what `option` said of it."""

    name: str
    type: Any
    default: Any
    info: Mapping[str, Any]

    @functools.cached_property
    def kinds(self) -> list[Any]:
        """The types that it may have, without None and without bounds."""
        parts = get_args(self.type) if get_origin(self.type) in (Union, types.UnionType) else (self.type,)
        return [
            get_args(part)[0] if get_origin(part) is Annotated else part for part in parts if part is not type(None)
        ]

    @property
    def choices(self) -> tuple[str, ...]:
        """The names it may have; empty where any value of its type will do."""
        if listed := self.info.get("choices") or self.info.get("known"):
            return tuple(listed())
        return get_args(self.kinds[0]) if get_origin(self.kinds[0]) is Literal else ()

    @property
    def kind(self) -> str:
        """Its type in words."""
        if "kind" in self.info:
            return str(self.info["kind"])
        if get_origin(self.kinds[0]) is Literal:
            return f"one of {', '.join(self.choices)}"
        element = get_args(self.kinds[0])[0] if get_origin(self.kinds[0]) is tuple else self.kinds[0]
        return _KINDS.get(element, "a value")

    @property
    def bound(self) -> str:
        """The bounds of its type in words."""
        words = []
        for part in (self.type, *get_args(self.type)):
            for meta in getattr(part, "__metadata__", ()):
                for sign, word in _BOUNDS.items():
                    if (limit := getattr(meta, sign)) is not None:
                        words.append("below 2⁶³" if limit == 2**63 - 1 else f"{word} {limit:g}")
        return f"it must be {' and '.join(words)}" if words else "it is out of range"

    def convert(self, value: Any, shown: str | None = None) -> Any:
        """Return a value in the field's type, or refuse it under the name `shown`."""
        name = shown or self.name
        try:
            result = msgspec.convert(value, self.type, strict=False, dec_hook=_decode)
        except (msgspec.ValidationError, RecursionError):
            pass
        else:
            if isinstance(result, float) and not math.isfinite(result):
                raise refuse(name, result, "it must be finite", DEFAULT)
            if result is not None and "choices" in self.info and result not in self.choices:
                raise unknown(self.name, str(result), self.choices)
            return result
        if isinstance(value, str) and get_origin(self.kinds[0]) is Literal:
            raise unknown(self.name, value, self.choices)
        for kind in self.kinds:
            try:
                number = msgspec.convert(value, kind, strict=False, dec_hook=_decode)
            except (msgspec.ValidationError, RecursionError):
                continue
            raise refuse(name, number, self.bound, self.info.get("remedy", DEFAULT))
        raise refuse(name, _short(value), f"it must be {self.kind}", self.info.get("remedy", DEFAULT))


def _decode(kind: Any, value: Any) -> Any:
    """Make what msgspec has no rule for: paths."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValueError(f"no {kind}")


def _short(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "…"
    return text if len(text) < 60 else f"{text[:57]}…"


@functools.cache
def fields_of(declaration: Any) -> dict[str, Field]:
    """Return the settings of a declaration by name."""
    hints = get_type_hints(declaration, include_extras=True)
    return {f.name: Field(f.name, hints[f.name], f.default, f.metadata) for f in dataclasses.fields(declaration)}


class Checked:
    """Base of a declaration: every field is converted to its type and checked when the record is made."""

    def __post_init__(self) -> None:
        own: Any = type(self)  # the cache asks for a Hashable, which mypy does not see in a class
        for name, field in fields_of(own).items():
            object.__setattr__(self, name, field.convert(getattr(self, name)))


def make(declaration: Callable[..., C], data: Mapping[str, Any], where: str) -> C:
    """Build a declaration from plain data; an unknown key is refused with the nearest name."""
    known = fields_of(declaration)
    named = {str(key).replace("-", "_"): value for key, value in data.items()}
    for name, key in zip(named, data, strict=False):
        if name not in known:
            raise unknown(f"key in {where}", str(key), known)
    return declaration(**named)


def read_settings(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Read a table of settings from a JSON or (by its suffix) TOML file."""
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if kind == "TOML" else msgspec.json.decode(text)
    except OSError as error:
        raise refuse(what, path, (error.strerror or str(error)).lower(), remedy) from error
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no {kind} ({error})"
        raise refuse(what, path, why, "correct it") from error
    if not isinstance(data, dict):
        raise refuse(what, path, "it holds no table of settings", 'write method = "eamsgd"')
    return data


def assignment(text: str) -> tuple[str, str]:
    """Read `name=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise SettingError(f"{text!r}: it must be NAME=VALUE; write --set damping=0.5")
    return name, value


def literal(value: Any) -> Any:
    """Return the number, truth value or None that a text spells, or the text itself."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return value
