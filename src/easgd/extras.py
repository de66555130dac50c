"""Packages that only some commands need: imported when used, named with the remedy when missing."""

from __future__ import annotations

import importlib
from typing import Any

from easgd.errors import SettingError

# Modules whose package has another name.
_PACKAGES = {"PIL": "Pillow", "sklearn": "scikit-learn"}


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional package, or say in one line what to install.

    Args:
        module: for instance "ray".
        extra: the extra of this package that brings it, as in `pip install 'easgd[ray]'`.
        purpose: what needs it, for instance "the Ray engine".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        package = _PACKAGES.get(name, name)
        raise SettingError(
            f"{purpose} needs {package}, which is not installed; pip install 'easgd[{extra}]'"
        ) from error


def require_report(purpose: str) -> None:
    """Refuse work that ends in a report or a figure before it begins, where the packages for that are missing."""
    for module in ("matplotlib", "plotly"):
        require(module, "report", purpose)
