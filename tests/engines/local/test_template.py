"""Workers that are forked from one process with torch imported: as fresh as interpreters of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from easgd.engines.local import kept_template
from easgd.engines.local.process import WorkerProcess
from easgd.engines.local.template import Template
from easgd.launch.process import Lifeline
from launching import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to the launcher")

TELL = """
import json, os, random, sys, threading, warnings
filters = [[action, category.__name__] for action, _, category, *_ in warnings.filters]
before = "torch" in sys.modules
os.environ["OMP_NUM_THREADS"] = "3"
import numpy as np, torch, easgd
model = torch.nn.Linear(1, 1)
easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), easgd.EASGD())
with open("/proc/self/cmdline", "rb") as file:
    shown = file.read().rstrip(b"\\0").decode()
print(json.dumps({
    "before": before, "threads": torch.get_num_threads(), "others": threading.active_count(), "argv": sys.argv[1:],
    "random": random.random(), "numpy": float(np.random.rand()), "parent": os.getppid(), "group": os.getpgid(0),
    "pid": os.getpid(), "shown": shown, "name": __name__, "cwd": os.getcwd(), "mark": os.environ["MARK"],
    "filters": filters, "main": sys.modules["__main__"].__dict__.get("shown") == shown,
}))
"""


def test_it_outlives_the_thread_that_started_it(tmp_path):
    """Linux ends a process "with its parent" when the thread that started it ends: the next run would have none."""
    lifeline = Lifeline()
    with ThreadPoolExecutor(1) as pool:
        template = pool.submit(Template, {**os.environ, "OMP_NUM_THREADS": "1"}).result()
        assert end(start((template, lifeline), tmp_path, "")) == 0  # it has imported everything
    assert end(start((template, lifeline), tmp_path, "raise SystemExit(7)")) == 7
    assert template.alive
    template.close()
    lifeline.close()


@pytest.fixture(scope="module")
def template() -> Iterator[tuple[Template, Lifeline]]:
    lifeline = Lifeline()
    template = Template({**os.environ, "OMP_NUM_THREADS": "1"})
    yield template, lifeline
    template.close()
    lifeline.close()


def start(template: tuple[Template, Lifeline], folder: Path, script: str, **environment: str) -> WorkerProcess:
    (folder / "script.py").write_text(script)
    target = ["script", str(folder / "script.py"), "--lr", "0.1"]
    return WorkerProcess(0, 0, target, {**os.environ, **environment}, folder / "logs", template[1], (), template[0])


def end(worker: WorkerProcess) -> int:
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    return worker.close()[0]


def told(worker: WorkerProcess, folder: Path) -> dict:
    code, log = end(worker), (folder / "logs" / "worker-0.log").read_text()
    assert code == 0, log
    return json.loads(log.splitlines()[-1])


def test_a_forked_worker_is_as_fresh_as_an_interpreter_of_its_own(template, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    workers = [start(template, folder, TELL, MARK=folder.name) for folder in folders]
    a, b = (told(worker, folder) for worker, folder in zip(workers, folders, strict=True))
    assert a["before"], "it was not forked"
    assert [a["pid"], b["pid"]] == [worker.pid for worker in workers]
    assert a["parent"] == os.getpid(), "the launcher cannot wait for it"
    assert a["group"] == a["pid"], "Ctrl-C would reach it"
    assert (a["random"], a["numpy"]) != (b["random"], b["numpy"])
    assert a["numpy"] != b["numpy"]
    assert a["threads"] == 3, "the script set OMP_NUM_THREADS before its import of torch"
    assert (a["mark"], b["mark"], a["name"], a["argv"]) == ("a", "b", "__main__", ["--lr", "0.1"])
    assert a["cwd"] == os.getcwd()
    assert ["ignore", "ResourceWarning"] in a["filters"], "Python's own filters; without them every script is noisy"
    assert a["main"]
    assert a["shown"].endswith("script.py --lr 0.1"), "ps would not show the script"


DRAW = """
import json, random
import numpy as np, torch
print(json.dumps([torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()]))
"""


def test_workers_of_a_run_split_data_alike_without_a_seed(template, tmp_path):
    """Two of one run and one of another."""
    drawn = []
    for number, run in enumerate(("local:/a", "local:/a", "local:/b")):
        folder = tmp_path / str(number)
        folder.mkdir()
        drawn.append(told(start(template, folder, DRAW, EASGD_RUN=run), folder))
    one, two, other = drawn
    assert one == two
    assert all(own != its for own, its in zip(one, other, strict=True))


@pytest.mark.parametrize(("line", "code"), [("raise SystemExit(7)", 7), ("1 / 0", 1), ("import os; os.abort()", -6)])
def test_its_exit_code_is_the_scripts(template, tmp_path, line, code):
    assert end(start(template, tmp_path, line)) == code


def test_a_killed_template_takes_no_worker_along_and_the_next_starts_without_it(tmp_path):
    lifeline = Lifeline()
    template = Template(dict(os.environ))
    try:
        (tmp_path / "a").mkdir()
        first = start((template, lifeline), tmp_path / "a", "import time; time.sleep(3600)")
        os.kill(template._process.pid, signal.SIGKILL)
        template._process.wait()
        second = start((template, lifeline), tmp_path, "print('up')")
        assert end(second) == 0
        assert not first.ended
        first.kill()
        assert end(first) == -signal.SIGKILL
    finally:
        template.close()
        lifeline.close()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[kept_template._Kept]:
    """Nothing kept; this test's own is ended with it."""
    mine = kept_template._Kept()
    monkeypatch.setattr(kept_template, "_kept", mine)
    yield mine
    mine.close()


def test_the_next_run_of_a_process_starts_from_the_same_template(pool, tmp_path):
    first = kept_template.borrow({**os.environ, "EASGD_RANK": "0"})
    kept_template.give_back(first)
    second = kept_template.borrow({**os.environ, "EASGD_RANK": "1", "EASGD_OUT": "elsewhere"})
    assert second is first
    another = kept_template.borrow(dict(os.environ))
    assert another is not first, "a run at the same time has its own"
    kept_template.give_back(first)
    kept_template.give_back(another)
    assert not first.alive, "one is kept, not many"
    assert another.alive


def test_other_surroundings_need_another_template(pool, tmp_path, monkeypatch):
    first = kept_template.borrow(dict(os.environ))
    kept_template.give_back(first)
    second = kept_template.borrow({**os.environ, "MKL_NUM_THREADS": "1"})
    assert second is not first
    assert not first.alive
    kept_template.give_back(second)
    monkeypatch.chdir(tmp_path)
    third = kept_template.borrow({**os.environ, "MKL_NUM_THREADS": "1"})
    assert third is not second
    third.close()


def test_a_template_that_nobody_needs_ends(pool, monkeypatch):
    monkeypatch.setattr(kept_template, "KEPT_SECONDS", 0.01)
    template = kept_template.borrow(dict(os.environ))
    kept_template.give_back(template)
    until(lambda: not template.alive, "it has ended")


def test_a_killed_template_is_not_kept(pool):
    template = kept_template.borrow(dict(os.environ))
    template._process.kill()
    template._process.wait()
    kept_template.give_back(template)
    other = kept_template.borrow(dict(os.environ))
    assert other is not template
    other.close()
