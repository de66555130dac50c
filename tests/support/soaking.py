"""A soak: a run of `easgd launch` whose processes are killed, stopped and joined at seeded moments; what is counted.

The run's folder is a small disk of its own where this machine lets us mount one: it fills up and empties again. The
history of the center is on another disk, so that every exchange of the whole time can be replayed.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from easgd.bench import Row
from easgd.launch.run_directory import live_runs
from histories import follows
from launching import alive, until

WORKERS = 3
START = 500.0  # seconds that processes may take to start on a machine that others use too
SCRIPT = Path(__file__).parent / "soak_worker.py"
Faults = dict[str, tuple[int, Callable[[], None]]]
"""What may happen, each with its weight."""
TRAINED = 1400
"""So many images are trained on; the center's error is that on the others."""


def digits(folder: Path) -> None:
    """Leave the images that workers train on."""
    images, labels = load_digits(return_X_y=True)
    folder.mkdir(exist_ok=True)
    np.savez(folder / "digits.npz", images=(images[:TRAINED] / 16).astype("float32"), labels=labels[:TRAINED])


def error_of(center: dict[str, torch.Tensor]) -> float:
    """Test error of a center."""
    images, labels = load_digits(return_X_y=True)
    scores = torch.tensor(images[TRAINED:] / 16, dtype=torch.float32) @ center["weight"].T + center["bias"]
    return float((scores.argmax(1) != torch.tensor(labels[TRAINED:])).float().mean())


class Disk:
    """A small disk for a run's folder; without the right to mount one, a folder that never fills up."""

    def __init__(self, path: Path) -> None:
        self.path, self.mounted = path, list[Path]()
        path.mkdir()
        self.small = os.geteuid() == 0 and self._mount("-t", "tmpfs", "-o", "size=512m", "tmpfs", path)

    def _mount(self, *what: object) -> bool:
        done = subprocess.run(["mount", *map(str, what)], capture_output=True).returncode == 0
        if done:
            self.mounted.append(Path(str(what[-1])))
        return done

    def aside(self, name: str, place: Path) -> None:
        """Keep a folder of the run on another disk, with what is in it so far."""
        (folder := self.path / name).mkdir(exist_ok=True)
        place.mkdir()
        for inner in folder.iterdir():
            (place / inner.name).mkdir()
        assert not self.small or self._mount("--bind", place, folder)

    def fill(self) -> None:
        with open(self.path / "ballast", "ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def empty(self) -> None:
        (self.path / "ballast").unlink()

    def close(self) -> None:
        for path in reversed(self.mounted):
            subprocess.run(["umount", "--lazy", str(path)], check=True)


class Soak:
    """One run that is disturbed.

    Args:
        folder: where everything is kept.
        options: of `easgd launch`; `--ray ADDRESS` makes it a run of the cluster.
        seed: decides what happens to whom.
    """

    def __init__(self, folder: Path, *options: str, seed: int = 0) -> None:
        self.folder, self.told, self.dice = folder, folder / "told", random.Random(seed)
        folder.mkdir()
        digits(self.told)
        self.disk = Disk(folder / "out")
        self.out, self.done, self.kills = self.disk.path, Counter[str](), 0
        self.usage: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.notice: list[float] = []
        self.restart: list[float] = []
        restarts = ["-n", str(WORKERS), "--restarts", "1000000", "--history", "--out", str(self.out)]
        self.process = self.launch("launcher", *restarts, *options)
        self.name = until(lambda: next(iter(live_runs()), None), "the run is there", START)
        # What is in the folder before the launcher has prepared it is moved aside.
        until((self.out / ("history" if "--ray" in options else "logs")).exists, "its folder is there", START)
        self.disk.aside("history", folder / "history")
        (self.told / "begin").touch()
        self.pids()

    def launch(self, log: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a launcher whose words go to a file: nobody reads them while the run goes on."""
        command = [sys.executable, "-m", "easgd", "launch", *options, str(SCRIPT), str(self.told)]
        with open(self.folder / f"{log}.log", "wb") as file:
            return subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)

    def said(self, pattern: str, log: str = "launcher") -> list[str]:
        return re.findall(pattern, (self.folder / f"{log}.log").read_text())

    # who is there ----------------------------------------------------------------------------------------------

    def newest(self, rank: int) -> int:
        found = [int(path.name.rpartition("-")[2]) for path in self.told.glob(f"at-{rank}-*")]
        return max(found, default=-1)

    def at(self, rank: int, incarnation: int) -> tuple[int, int]:
        """Wait until a worker has taken a step; return its process id and its clock."""
        path = self.told / f"at-{rank}-{incarnation}"

        def there() -> bool:
            assert self.process.poll() is None, (self.folder / "launcher.log").read_text()[-4000:]
            return path.exists()

        until(there, f"worker {rank}, incarnation {incarnation}, trains", START)
        pid, clock = path.read_text().split()
        return int(pid), int(clock)

    def pids(self) -> list[int]:
        return [self.at(rank, max(0, self.newest(rank)))[0] for rank in range(WORKERS)]

    def any_worker(self) -> tuple[int, int, int]:
        rank = self.dice.randrange(WORKERS)
        incarnation = self.newest(rank)
        return rank, incarnation, self.at(rank, incarnation)[0]

    # what happens ----------------------------------------------------------------------------------------------

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End a worker by a signal, and wait until its next incarnation trains."""
        rank, incarnation, pid = self.any_worker()
        deaths, began = len(self.said(rf"worker {rank} died")), time.monotonic()
        os.kill(pid, number)
        self.kills += 1
        until(lambda: len(self.said(rf"worker {rank} died")) > deaths, "its death is noticed", START)
        self.notice.append(time.monotonic() - began)
        self.at(rank, incarnation + 1)
        self.restart.append(time.monotonic() - began)

    def terminate(self) -> None:
        self.kill(signal.SIGTERM)

    def kill_two(self) -> None:
        """Kill two workers at the same moment."""
        first, second = self.dice.sample(range(WORKERS), 2)
        before = {rank: self.newest(rank) for rank in (first, second)}
        for rank, incarnation in before.items():
            os.kill(self.at(rank, incarnation)[0], signal.SIGKILL)
            self.kills += 1
        for rank, incarnation in before.items():
            self.at(rank, incarnation + 1)

    def stop(self) -> None:
        """Stop a worker for a while."""
        _, _, pid = self.any_worker()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.1, 2.0))
        os.kill(pid, signal.SIGCONT)

    def join(self) -> None:
        """Let a second launcher join with a worker; kill it, or ask it to leave."""
        before = {path.name for path in self.told.glob(f"at-{WORKERS}-*")}
        log = f"join-{self.done['joins']}"
        joined = self.launch(log, "--join", self.name)

        def trains() -> set[str]:
            assert joined.poll() is None, (self.folder / f"{log}.log").read_text()
            return {path.name for path in self.told.glob(f"at-{WORKERS}-*")} - before

        (name,) = until(trains, "the joined worker trains", START)
        pid = int((self.told / name).read_text().split()[0])
        polite = self.dice.random() < 0.5
        joined.send_signal(signal.SIGTERM if polite else signal.SIGKILL)
        code = joined.wait(60)
        assert not polite or code == 128 + signal.SIGTERM, (code, (self.folder / f"{log}.log").read_text())
        until(lambda: not alive(pid), "its worker has ended")
        if not polite:
            gone = self.done["killed launchers"]
            until(lambda: len(self.said("died with its launcher")) > gone, "the run has noticed", START)
            self.done["killed launchers"] += 1
        self.done["joins"] += 1

    def full_disk(self) -> None:
        """Fill the disk; workers go on, one is killed and starts again on it; empty it."""
        if not self.disk.small:
            return
        self.disk.fill()
        clocks = {rank: self.at(rank, self.newest(rank))[1] for rank in range(WORKERS)}
        for rank, clock in clocks.items():
            until(lambda r=rank, c=clock: self.at(r, self.newest(r))[1] >= c + 40, "it goes on", START)
        self.kill()
        self.disk.empty()

    # the time --------------------------------------------------------------------------------------------------

    def work(self, seconds: float, faults: Faults, watched: Callable[[], dict[str, int]]) -> None:
        """Let faults happen, by their weights, for so many seconds; note what the watched processes use."""
        names, weights = list(faults), [weight for weight, _ in faults.values()]
        end = time.monotonic() + seconds
        shown = time.monotonic()
        while time.monotonic() < end:
            (name,) = self.dice.choices(names, weights)
            faults[name][1]()
            self.done[name] += 1
            for label, pid in watched().items():
                self.usage[label].append(usage(pid))
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(f"{end - shown:.0f} s are left: {dict(self.done)}", flush=True)

    def finish(self) -> dict[str, torch.Tensor]:
        """Let the workers end; return the center."""
        (self.told / "go").touch()
        assert self.process.wait(4 * START) == 0, (self.folder / "launcher.log").read_text()[-4000:]
        return load_file(self.out / "center.safetensors")

    def rows(self, engine: str, seconds: float, error: float, undisturbed: float) -> list[Row]:
        """What was counted: deaths against kills, exchanges that the replay explains, growth, and the error."""
        deaths = len(self.said(r"worker \d+ died \("))
        exchanges = sum(report.exchanges for report in follows(self.out))
        what, more = f"28 {engine}: {seconds / 60:.0f} min", f"soak, {engine}"
        found = [
            Row(f"{what}, deaths of workers, beside kills", deaths, "deaths", self.kills, deaths / max(1, self.kills)),
            Row(f"{what}, exchanges that the replay explains", exchanges, "exchanges", exchanges, 1.0),
            Row(f"{what}, test error, beside the undisturbed run", error, "", undisturbed, error / undisturbed),
            Row(f"{more}, kill to noticed, median", statistics.median(self.notice), "s", 1.0,
                statistics.median(self.notice)),
            Row(f"{more}, kill to training again, median", statistics.median(self.restart), "s",
                max(self.restart), statistics.median(self.restart) / max(self.restart)),
        ]  # fmt: skip
        for name, count in sorted(self.done.items()):
            found.append(Row(f"{more}, {name}", count, "times", count, 1.0))
        for label, used in self.usage.items():
            for k, (unit, scale) in enumerate((("MB", 1e6), ("descriptors", 1))):
                early, late = (count / scale for count in growth([use[k] for use in used]))
                whose = what if (label, unit) == ("launcher", "MB") else more
                case = f"{whose}, {unit} of the {label} at the end, beside the beginning"
                found.append(Row(case, late, unit, early, late / early))
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.disk.close()


def usage(pid: int) -> tuple[int, int]:
    """Resident bytes and open descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


def growth(samples: list[int]) -> tuple[float, float]:
    """Medians near the beginning, when all has been imported, and at the end."""
    part = max(1, len(samples) // 8)
    return statistics.median(samples[part : 2 * part] or samples), statistics.median(samples[-part:])


def undisturbed(folder: Path, seconds: float, *options: str) -> float:
    """Test error of the center of the same run without faults."""
    calm = Soak(folder, *options)
    try:
        until(lambda: calm.at(0, 0)[1] > 100 * seconds, "it has trained", 60 + 20 * seconds)
        return error_of(calm.finish())
    finally:
        calm.close()


def judge(rows: list[Row]) -> None:
    """Print the rows, and refuse what must not be."""
    text = json.dumps([row.as_dict() for row in rows], indent=1)
    print(text)
    if folder := os.environ.get("EASGD_SOAK_OUT"):
        Path(folder, f"soak-{rows[0].case.split()[1].rstrip(':')}.json").write_text(text)
    for row in rows:
        if "deaths of workers" in row.case:
            assert row.ratio == 1.0, row
        elif row.unit == "MB":
            assert row.value < 1.2 * row.reference + 30, row
        elif row.unit == "descriptors":
            assert row.value <= row.reference + 4, row
        elif "test error" in row.case:
            assert row.value <= row.reference + 0.03, row
