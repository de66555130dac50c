"""One thread per process: tests run four at a time on two cores, and bits must not depend on the machine.

Hypothesis tries the same examples every time: a test that fails must fail again. Helper modules are in tests/support.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from easgd.engines.local import kept_template
from launching import Launch, RunFiles, alive, until, written

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
# Under `nohup`, or started in the background, the signals that tests send would be ignored by what they start.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)


# Files of few but long tests go first, the longest at the top: begun last, they would leave a processor idle.
HEAVY = (
    "test_faults_ray", "test_conformance_ray", "test_train_local", "test_two_nodes", "test_own_method", "/groups/",
    "test_launch_training", "test_compare", "test_conformance_local", "test_shared_gradients", "test_full_disk",
    "test_recipes", "test_launch", "test_train_simulate", "test_center", "engines/ray", "conformance", "test_scripts",
)  # fmt: skip


# These use the fixture `cluster`: in one process they share one Ray, which takes half a minute to start beside others.
ON_A_CLUSTER = ("test_faults_ray", "test_conformance_ray", "test_train_ray")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, as `--dist loadfile` does, and the files on a cluster to the same one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "cluster" if any(name in file for name in ON_A_CLUSTER) else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((k for k, name in enumerate(HEAVY) if name in item.path.as_posix()), len(HEAVY)))


# Between two runs of this process there may be long tests.
kept_template.KEPT_SECONDS = 600.0


def _forget_the_name() -> None:
    """Workers of one test must be as those of the next, so that they start from one template (`kept_template`)."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    _forget_the_name()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    _forget_the_name()


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test run directories of its own: tests that run beside it clean up only theirs."""
    folder = tmp_path_factory.mktemp("shm")
    monkeypatch.setenv("EASGD_SHARED", str(folder))
    return folder


@pytest.fixture
def run_folder(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def launch(tmp_path: Path, shared: Path) -> Iterator[Callable[..., Launch]]:
    """Start `easgd launch` on this machine; what still runs at the end of the test is killed."""
    started: list[Launch] = []

    def start(body: str, *options: str, where: str = "a", **more: Any) -> Launch:
        started.append(Launch(tmp_path / where, body, *options, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def launched(
    tmp_path: Path, shared: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str, Path]]:
    """Run `easgd launch` to its end in this process, which has imported torch, and has a template (`kept_template`).

    `beside` is called with the run on a thread, meanwhile. For tests of what workers do; those of the launcher itself,
    and those that send it signals, give it a process (`launch`).
    """
    from easgd.cli import main

    def run(
        body: str, *options: str, workers: int = 4, where: str = "a", beside: Callable[[RunFiles], None] | None = None
    ) -> tuple[int, str, str, Path]:
        _, out, script = written(tmp_path / where, body, "train")
        capfd.readouterr()
        with ThreadPoolExecutor() as pool:
            happens = pool.submit(_ending_with, beside, RunFiles(out)) if beside is not None else None
            code = main(["launch", "-n", str(workers), "--out", str(out), *options, str(script)])
        if happens is not None:
            happens.result()
        return code, *capfd.readouterr(), out

    return run


def _ending_with(beside: Callable[[RunFiles], None], run: RunFiles) -> None:
    try:
        beside(run)
    except BaseException:
        run.touch("go")  # a run whose test has failed must end too
        raise


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """One Ray for all tests of a process, on the loopback address."""
    from easgd.engines.ray.cluster import connect

    mine = connect(None)
    yield mine
    mine.close()


@pytest.fixture(scope="module")
def lab() -> Iterator[object]:
    """Two machines with a link between them (`easgd.bench.link`); `lab.nodes` starts a Ray node on each."""
    from easgd.bench.link.laboratory import Laboratory
    from easgd.bench.link.network import missing

    if (lack := missing()) is not None:
        pytest.skip(lack)
    with Laboratory() as mine:
        yield mine
        pids = [pid for machine in (0, 1) for pid in mine.pids(machine)]
    until(lambda: not any(map(alive, pids)), "the laboratory's processes have ended", 20)
