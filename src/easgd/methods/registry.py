"""Which methods there are, by the names of the command line and of configuration files.

A name is one of

- a file of this package: `easgd.methods.downpour` holds `Downpour`, whose key is "downpour";
- an entry point of an installed package, in the group "easgd.methods";
- the key of a class that `register` was called with in this process;
- "package.module:ClassName", which any process that can import the module understands.

Names are known without importing the methods, and so without torch: `easgd train --help` prints them.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from easgd.errors import SettingError, refuse, unknown

if TYPE_CHECKING:
    from easgd.methods.base import Method

M = TypeVar("M", bound="type[Method]")
GROUP = "easgd.methods"
SUPPORT = {"base", "change", "checks", "momentum", "moving", "outer", "registry"}
"""Modules of this package that hold no method."""
_registered: dict[str, type[Method]] = {}


@functools.cache
def built_in() -> tuple[str, ...]:
    """The keys of the library's own methods, which are the names of their files."""
    modules = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return tuple(sorted(set(modules) - SUPPORT))


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Every name that stands for a method, in alphabetical order."""
    return sorted({*built_in(), *_entry_points(), *_registered})


def register(method: M) -> M:
    """Make a method known to this process under its `key`; also as a decorator.

    Runs on other processes record where the class is (`module:ClassName`), so its module must be importable there. A
    package that is installed can name it as an entry point of the group "easgd.methods" instead.

    Example:
        >>> import easgd
        >>> @easgd.register
        ... class Halved(easgd.EASGD):
        ...     key = "halved"
        >>> easgd.Config(method="halved", engine="simulate").method_class.__name__
        'Halved'
    """
    key = _checked(method, str(method)).key
    if key in built_in() or _registered.get(key, method).__qualname__ != method.__qualname__:
        raise refuse("key", key, "another method has this name", f'write key = "my-{key}" in {method.__name__}')
    _registered[key] = method
    return method


def get(name: str) -> type[Method]:
    """Return the class of a method."""
    if name in _registered:
        return _registered[name]
    if name in built_in():
        module = importlib.import_module(f"easgd.methods.{name}")
        return _checked(next(kind for kind in vars(module).values() if getattr(kind, "key", None) == name), name)
    if ":" in name:
        return _import(name)
    if name in _entry_points():
        return _checked(_entry_points()[name].load(), name)
    raise unknown("method", name, names())


def check(name: str) -> None:
    """Refuse a name that stands for no method; import nothing for those that are known by name."""
    if ":" in name or name not in names():
        get(name)


def reference(name: str) -> str:
    """Return the name under which other processes find a method: of one registered here, its module and class."""
    if name not in _registered:
        return name
    method = _registered[name]
    return f"{method.__module__}:{method.__qualname__}"


def _import(name: str) -> type[Method]:
    """Import "package.module:ClassName", also from the working directory, as `python -m` would."""
    module, _, path = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "install its package, or start in the folder that holds it"
        raise refuse("method", name, f"it cannot be imported ({error})", remedy) from error
    return _checked(found, name)


def _checked(found: object, name: str) -> type[Method]:
    from easgd.methods.base import Method

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise SettingError(f"method = {name}: it is no subclass of easgd.Method; derive it from one")
    return found


def table() -> str:
    """The built-in methods as a table in Markdown, for docs/methods.md."""
    order = sorted((get(name) for name in built_in()), key=lambda method: method.order)
    rows = [
        f"| `{m.__name__}` | `{m.key}` | {m.paper} | {'1' if m.sequential else 'any'} | {m(**m.presets).period} "
        f"| {m.rates['digits']:g}, {m.rates['cifar']:g} |"
        for m in order
    ]
    head = "| method | `--method` | paper | p | τ | η on digits, CIFAR |\n|---|---|---|---|---|---|"
    return "\n".join([head, *rows])
