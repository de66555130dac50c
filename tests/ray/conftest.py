"""One Ray for all tests of a process, on the loopback address; everything that a test starts ends with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
sys.path.insert(0, str(Path(__file__).parents[1] / "local"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from easgd.engines.ray.cluster import connect

    mine = connect(None)
    yield mine
    mine.close()


@pytest.fixture(autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run directories of their own: tests that run beside clean up only theirs."""
    folder = tmp_path_factory.mktemp("shm")
    monkeypatch.setenv("EASGD_SHARED", str(folder))
    return folder
