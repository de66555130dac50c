"""The examples in the docstrings give what they say."""

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import easgd
from easgd.methods import registry

SOURCE = Path(easgd.__file__).parent
WITH_EXAMPLES = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_every_example_gives_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # an example registers a method
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, "every example is skipped"
    assert result.failed == 0


def test_every_public_name_has_an_example():
    names = [name for name in (*easgd.__all__, "SGD", "ASGD") if not isinstance(getattr(easgd, name), ModuleType)]
    assert [name for name in names if ">>> " not in (getattr(easgd, name).__doc__ or "")] == []
