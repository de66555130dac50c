"""Every test has folders of its own, and what it launches ends with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launch


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test run directories of its own: tests that run beside it clean up only theirs."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setenv("EASGD_SHARED", str(folder))
    return folder


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test the environment that a launcher gives its only worker."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, value in {
        "EASGD_RUN": folder,
        "EASGD_RANK": 0,
        "EASGD_WORKERS": 1,
        "EASGD_OUT": tmp_path / "out",
    }.items():
        monkeypatch.setenv(name, str(value))
    return folder


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(body: str, *options: str, workers: int = 4, where: str = "a", name: str = "train") -> Launch:
        started.append(Launch(tmp_path / where, body, *options, workers=workers, name=name))
        return started[-1]

    yield start
    for one in started:
        one.close()
