"""Real signals on real actors: what a death costs, and that everything goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray
import torch
from safetensors.torch import load_file

import easgd
import tasks
from easgd import checkpoint
from easgd.launch.run_directory import live_runs
from easgd.records import Event, Step, parse, read_records
from histories import follows
from launching import alive, until

pytestmark = pytest.mark.timeout(600)
START = 200.0  # seconds that processes may take to start on a busy machine; alone, a few


class Run:
    """`easgd.run` on a thread, and what its workers tell through files."""

    def __init__(self, folder: Path, workers: int, options: dict | None = None, **settings) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.result: easgd.Result | None = None
        self._thread = threading.Thread(target=self._work, args=(workers, options, settings), daemon=True)
        self._thread.start()

    def _work(self, workers, options, settings):
        self.result = easgd.run(
            tasks.until_told, workers, "ray", (str(self.folder), 1, options), out=self.folder / "out", **settings
        )

    def at(self, rank: int, incarnation: int = 0) -> list[int]:
        """Process id, clock, living: as the worker wrote last; empty before its first step."""
        path = self.folder / f"at-{rank}-{incarnation}"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def up(self, *workers: tuple[int, int]) -> list[int]:
        return [until(lambda w=w: self.at(*w), f"worker {w} is up", START)[0] for w in workers]

    def moves(self, rank: int, incarnation: int = 0, steps: int = 20) -> None:
        before = self.at(rank, incarnation)[1]
        until(lambda: self.at(rank, incarnation)[1] >= before + steps, f"worker {rank} goes on")

    def events(self, *kinds: str) -> list[dict]:
        found = [r for r in read_records(self.folder / "out") if isinstance(r, Event)]
        return [r for r in found if not kinds or r.event in kinds]

    def host(self, k: int = 0):
        return self.actor(f"shard-{k}")

    def actor(self, name: str):
        (run,) = (path.name for path in Path(os.environ["EASGD_SHARED"]).glob("*/*") if path.is_dir())
        return ray.get_actor(name, namespace=run)

    def finish(self) -> easgd.Result:
        (self.folder / "go").touch()
        self._thread.join(60)
        assert self.result is not None
        return self.result


@pytest.fixture
def started(cluster, tmp_path):
    runs: list[Run] = []

    def start(workers, options=None, **settings):
        runs.append(Run(tmp_path / f"run-{len(runs)}", workers, options, **settings))
        return runs[-1]

    yield start
    for one in runs:
        (one.folder / "go").touch()
        one._thread.join(60)


def test_deaths_pauses_and_a_killed_center(started):
    """Cases 1, 4, 5, 8, 11: kill a worker, stop one, kill a shard; everybody goes on and it is written down."""
    run = started(3, restarts=1, shards=1, interval=0.5, history=True)
    pids = run.up((0, 0), (1, 0), (2, 0))
    until(lambda: run.at(0)[2] == 3, "all are counted")

    os.kill(pids[1], signal.SIGKILL)
    until(lambda: run.events("death"), "the death is noticed")
    run.moves(0)
    run.up((1, 1))
    until(lambda: run.at(0)[2] == 3 == run.at(1, 1)[2], "the restarted one is counted")

    os.kill(pids[2], signal.SIGSTOP)
    clock = run.at(2)[1]
    run.moves(0, steps=100)
    assert run.at(2)[1] <= clock + 10
    os.kill(pids[2], signal.SIGCONT)
    run.moves(2)

    host = run.host()
    os.kill(ray.get(host.pid.remote()), signal.SIGKILL)
    until(lambda: {r.worker for r in run.events("rollback")} == {0, 1, 2}, "all see the roll-back", START)
    for rank, incarnation in ((0, 0), (1, 1), (2, 0)):
        run.moves(rank, incarnation)
    result = run.finish()
    assert result.exit_codes == [0, 0, 0]
    assert all(value.isfinite().all() for value in result.center.values())
    (restored,) = run.events("restored")
    lost = float(restored.detail.split("at most ")[1].split(" s of it")[0])
    assert lost < 30.0, "an interval of half a second, and what a busy machine adds"
    assert "epoch 1" in run.events("rollback")[0].detail
    follows(run.folder / "out")


def test_a_killed_coordinator_comes_back_with_its_members(started):
    run = started(2, restarts=1, history=True)
    pids = run.up((0, 0), (1, 0))
    os.kill(ray.get(run.actor("coordinator").pid.remote()), signal.SIGKILL)
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: run.events("restored"), "the coordinator is back", START)
    run.up((1, 1))
    until(lambda: run.at(0)[2] == 2 == run.at(1, 1)[2], "the restarted worker is counted")
    assert run.finish().exit_codes == [0, 0]
    assert [r.worker for r in run.events("death")] == [1]
    follows(run.folder / "out")


@pytest.mark.heavy
def test_all_workers_die_and_a_later_run_goes_on_from_the_center(started, tmp_path, cluster):
    """Cases 10, 26."""
    run = started(2, interval=0.5)
    for pid in run.up((0, 0), (1, 0)):
        os.kill(pid, signal.SIGKILL)
    result = run.finish()
    assert result.exit_codes == [-signal.SIGKILL] * 2
    assert set(load_file(run.folder / "out" / "center.safetensors")) == {"weight", "bias"}
    later = easgd.run(tasks.resumed, 1, "ray", (str(tmp_path), str(run.folder / "out")))
    assert later.exit_codes == [0]
    same, saved, now, _ = (tmp_path / "resumed").read_text().split()
    assert same == "True"
    assert int(now) == int(saved) + 1 > 1, "the center's clock goes on"


@pytest.mark.heavy
def test_a_center_that_never_returns_is_a_named_error(started, capfd):
    """Case 9."""
    run = started(1, {"patience": 0}, center_restarts=0, interval=0.5)
    run.up((0, 0))
    until(lambda: (run.folder / "out" / "state.safetensors").exists(), "the center is saved")
    os.kill(ray.get(run.host().pid.remote()), signal.SIGKILL)
    run._thread.join(60)
    assert run.result is not None
    assert run.result.exit_codes == [1]
    assert "CenterLostError" in capfd.readouterr().err
    kept = checkpoint.load(run.folder / "out" / "weights-0.safetensors")
    assert set(kept["model"]) == {"weight", "bias"}
    assert run.result.center is not None, "what is left is the last checkpoint"
    assert [r.event for r in run.events("unreachable")] == ["unreachable"]


@pytest.mark.heavy
def test_one_ten_times_slower_holds_up_nobody(cluster, tmp_path):
    """Case 12: the slow one waits for ten steps of all others before each of its own."""
    result = easgd.run(tasks.ten_times_slower, 3, "ray", (str(tmp_path),))
    assert result.exit_codes == [0, 0, 0]
    steps = [sum(isinstance(r, Step) and r.worker == rank for r in result.records) for rank in range(3)]
    assert steps == [200, 200, 20]


@pytest.mark.heavy
def test_a_worker_is_stopped_in_a_round(started):
    """Case 33: others wait in a round, which is recorded with the way on; both ways on are taken."""
    run = started(2, schedule="sync", history=True)
    pid = run.up((0, 0), (1, 0))[1]
    os.kill(pid, signal.SIGSTOP)
    paused = until(lambda: run.events("paused"), "that it stands still is recorded", START)[0]
    assert paused.worker == 1
    assert f"kill -CONT {pid} lets it go on, kill -KILL {pid} ends it" in paused.detail
    os.kill(pid, signal.SIGCONT)
    until(lambda: [r.worker for r in run.events("resumed")] == [1], "that it goes on is recorded", START)
    run.moves(0)
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    run.moves(0)
    assert run.finish().exit_codes == [0, -signal.SIGKILL]
    assert [r.worker for r in run.events("death")] == [1]
    follows(run.folder / "out")


SCRIPT = """
import sys; sys.path[:0] = {path!r}
import tasks
tasks.until_told({folder!r}, 50)
"""


@pytest.fixture
def launch(cluster):
    launched: list[subprocess.Popen] = []

    def start(folder: Path, *options: str) -> subprocess.Popen:
        folder.mkdir(exist_ok=True)
        script = folder / "train.py"
        script.write_text(SCRIPT.format(path=[p for p in sys.path if "tests" in p], folder=str(folder)))
        launched.append(
            subprocess.Popen(
                [sys.executable, "-m", "easgd", "launch", *options, str(script)],
                cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        )  # fmt: skip
        return launched[-1]

    yield start
    for one in launched:
        one.kill()
        one.communicate()


def pid_of(launcher: subprocess.Popen, rank: int, incarnation: int = 0) -> int:
    """Wait until a worker is up; return its process id. A launcher that ended, or that hangs, says why."""
    path = Path(str(launcher.args[-1])).parent / f"at-{rank}-{incarnation}"
    try:
        until(lambda: path.exists() or launcher.poll() is not None, f"worker {rank} is up", START)
        return int(path.read_text().split()[0])
    except (AssertionError, FileNotFoundError):
        launcher.send_signal(signal.SIGABRT)  # with PYTHONFAULTHANDLER: where each of its threads is
        raise AssertionError(f"worker {rank} is not up: {launcher.communicate()}") from None


def lost_steps(path: Path) -> int:
    """Steps of a worker that no exchange has brought to the center, by its records."""
    records = [parse(line) for line in path.read_bytes().splitlines()]
    steps = [r for r in records if isinstance(r, Step)]
    last = [int(r.detail.removeprefix("step ")) for r in records if isinstance(r, Event) and r.event == "last exchange"]
    assert records[-1].event == "leave"
    # A signal may come between a step and its record: then one step more has reached the center.
    return max(0, steps[-1].clock + 1 - max(last + [r.clock for r in steps if r.staleness is not None]))


@pytest.mark.heavy
def test_signals_to_a_worker_to_a_launcher_that_joined_and_to_the_run(launch, cluster, tmp_path):
    """Cases 6, 24, 32: a joiner is counted; who is asked to end brings its steps to the center first, and leaves."""
    folder, out = tmp_path / "a", tmp_path / "a" / "out"
    one = launch(folder, "--ray", cluster.address, "-n", "2", "--history", "--out", str(out))
    first, terminated = pid_of(one, 0), pid_of(one, 1)
    os.kill(terminated, signal.SIGTERM)
    until(lambda: not alive(terminated), "it has ended")
    (name,) = live_runs()
    two = launch(folder, "--join", name)
    second = pid_of(two, 1, 1)
    until(lambda: (folder / "at-0-0").read_text().split()[2] == "2", "the joiner is counted")
    two.send_signal(signal.SIGINT)
    assert two.wait(60) == 130
    until(lambda: (folder / "at-0-0").read_text().split()[2] == "1", "it has left")
    one.send_signal(signal.SIGTERM)
    printed, err = one.communicate(timeout=60)
    assert one.returncode == 128 + signal.SIGTERM, err
    assert "the center is saved" in err
    assert "workers by node" in printed
    assert not alive(first)
    assert not alive(second)
    assert [lost_steps(path) for path in out.glob("records-[0-9]*")] == [0, 0, 0]
    assert (out / "state.safetensors").exists()
    follows(out)
    two.communicate()


@pytest.mark.heavy
def test_a_killed_launcher_takes_its_workers_with_it(launch, cluster, tmp_path):
    """Case 24."""
    folder = tmp_path / "a"
    one = launch(folder, "--ray", cluster.address, "-n", "1", "--out", str(folder / "out"))
    pid = pid_of(one, 0)
    one.kill()
    one.communicate()
    until(lambda: not alive(pid), "the worker has ended")


def digits(codec: str | None, seed: int) -> float:
    """Test error of the center on digits."""
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    os.environ["EASGD_CENTER"] = f"{codec} {seed}"
    method = easgd.EAMSGD(period=10, momentum=0.9)
    worker = easgd.attach(model, optimizer, method, compression=codec)
    order = torch.Generator().manual_seed(100 * seed + worker.rank)
    for _ in range(400):
        rows = torch.randint(0, 1500, (32,), generator=order)
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.load_state_dict(worker.center())
    worker.close()
    return float((model(x[1500:]).argmax(1) != y[1500:]).float().mean())


def digits_all(folder: str) -> None:
    errors = {str(codec): [digits(codec, seed) for seed in range(4)] for codec in (None, "int8")}
    if os.environ["EASGD_RANK"] == "0":
        checkpoint.save(Path(folder) / "errors", errors)


@pytest.mark.heavy
def test_int8_trains_as_well_and_moves_forty_times_less_than_gradients(cluster, tmp_path):
    """DistributedDataParallel sends and receives a gradient of 4n bytes in every step: 8n bytes a step."""
    result = easgd.run(digits_all, 2, "ray", (str(tmp_path),))
    assert result.exit_codes == [0, 0]
    errors = checkpoint.load(tmp_path / "errors")
    exact, packed = (torch.tensor(errors[name]) for name in ("None", "int8"))
    noise = max(float(exact.std()), 0.01)
    assert packed.mean() < exact.mean() + 2 * noise, (exact, packed)
    n = 64 * 64 + 64 + 64 * 10 + 10
    steps = [r for r in result.records if isinstance(r, Step) and r.worker == 0]
    int8 = steps[len(steps) // 2 :]
    per_step = sum(r.bytes for r in int8) / len(int8)
    assert 39 < 8 * n / per_step < 41
