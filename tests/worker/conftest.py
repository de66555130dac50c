"""Every test has run directories of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_runs(shared: Path) -> None:
    pass
