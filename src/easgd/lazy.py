"""Names that a package exports without importing their modules: `import easgd.data` must not import torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names are imported on first use.

    Args:
        package: its `__name__`.
        modules: the names that each of its modules exports, separated by spaces.
    """
    home = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def getattr_(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return getattr_, lambda: sorted(home)
