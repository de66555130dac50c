"""A run's folder on shared memory: who owns it, which runs are alive, and removal of what dead ones left.

    /dev/shm/easgd-<uid>/<run id>/owner     locked by the launcher for as long as it lives; describes the run
                                  ranks     which rank is held by which launcher
                                  …         what the center keeps here
    /dev/shm/easgd-<uid>/<run id>@<node>/   memory that the workers of one machine of a cluster share, and hold together

A run is alive while its owner's lock is held. The kernel drops a record lock with its process, however that ends, so
no process identifier is trusted and nothing needs a time limit. Folders are made, probed and removed under a lock on
the common folder: nobody sees a run between its folder and its lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from easgd.errors import SettingError, refuse
from easgd.files import reason
from easgd.launch.backend import RunRequest
from easgd.locks import RecordLocks

MACHINE = "@"
"""Between a run's id and the node, in the name of a folder that a cluster's workers share on one machine."""
# A process cannot ask whether it holds a record lock itself, and reading its own owner file would drop the lock.
_OWNED: set[Path] = set()


@dataclass(frozen=True)
class Description:
    """What the owner file tells other processes about a run."""

    pid: int
    workers: int
    out: str
    command: str = ""
    schedule: str | None = None
    ray: str | None = None
    """The address of the Ray cluster that it runs on, if it does."""
    started: float = field(default_factory=time.time)
    origin: float = field(default_factory=time.monotonic)
    """The monotonic clock at the start: zero of the launcher's time until training begins."""
    elapsed: float = 0.0
    """Seconds of training that a resumed run has behind it."""
    nproc: int = 1
    """Ranks of each worker, which is a group if there are several."""
    history: str = ""
    """The folder where exchanges are written down; empty where nobody asked for it."""


def base() -> Path:
    """Return the folder of this user's runs (it may not exist).

    EASGD_SHARED names another place than /dev/shm: containers often give that 64 MB, less than a large model needs.
    """
    shared = Path(os.environ.get("EASGD_SHARED", "/dev/shm"))
    if "EASGD_SHARED" in os.environ and not shared.is_dir():
        raise refuse("EASGD_SHARED", shared, "it is not a folder", "make it, or unset EASGD_SHARED")
    usable = shared.is_dir() and os.access(shared, os.W_OK)
    return (shared if usable else Path(tempfile.gettempdir())) / f"easgd-{os.getuid()}"


@contextmanager
def _locked_base() -> Iterator[Path]:
    """Hold the common folder; make it if need be, and remove it if it ends up empty."""
    path = base()
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SettingError(f"{path} is not a folder ({reason(error)}); remove it") from error
        # flock, not a record lock: it works on a folder and needs no lock file that could stay behind.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        os.close(descriptor)  # somebody removed it while we waited
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise refuse(str(path), oct(found.st_mode & 0o777), "it must belong to you alone (0o700)", "remove it")
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()
        os.close(descriptor)


def _is_free(run: Path) -> bool:
    """Whether nobody holds the run's owner lock. Call it under the lock of the common folder."""
    if run in _OWNED:
        return False
    return not (run / "owner").exists() or _is_unlocked(RecordLocks.of(run / "owner"))


def _is_unlocked(owner: RecordLocks) -> bool:
    if not owner.try_take(0):
        return False
    owner.release(0)
    return True


def describe(run: Path) -> Description:
    """Read a live run's owner file; what another version of easgd says beyond our fields is left out."""
    known = {each.name for each in fields(Description)}
    found = json.loads((run / "owner").read_text())
    return Description(**{name: value for name, value in found.items() if name in known})


def live_runs() -> dict[str, Description]:
    """Return the runs of this user that are alive, by id."""
    if not base().is_dir():
        return {}
    with _locked_base() as folder:
        runs = [run for run in _runs(folder) if MACHINE not in run.name]
        return {run.name: describe(run) for run in runs if not _is_free(run) and run not in _OWNED}


def stale_runs() -> list[Path]:
    """Return the folders that dead launchers left behind."""
    if not base().is_dir():
        return []
    with _locked_base() as folder:
        return _stale(folder)


def clean_stale() -> list[str]:
    """Remove what dead launchers left behind; return the ids. A live run is never touched."""
    if not base().is_dir():
        return []
    with _locked_base() as folder:
        stale = _stale(folder)
        for run in stale:
            shutil.rmtree(run, ignore_errors=True)
    return [run.name for run in stale]


def _runs(folder: Path) -> list[Path]:
    """Return the run directories. What is no folder is nobody's run: it stays, and disturbs nobody."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _stale(folder: Path) -> list[Path]:
    return [run for run in _runs(folder) if _is_free(run)]


def new_id(name: str) -> str:
    """Return a readable name that no other run of this machine has."""
    return f"{name}-{os.getpid()}-{secrets.token_hex(2)}"


class OwnedRun:
    """A run directory that this process made, holds and removes."""

    def __init__(self, request: RunRequest, ray: str | None = None) -> None:
        self.id = request.id
        self.path = base() / self.id
        try:
            self._make(request, ray)
        except OSError as error:
            _OWNED.discard(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
            raise SettingError(
                f"no run directory in {base()} ({reason(error)}); make room, or set EASGD_SHARED to another folder"
            ) from error

    def _make(self, request: RunRequest, ray: str | None) -> None:
        with _locked_base():
            self.path.mkdir(mode=0o700)
            self._owner = RecordLocks.of(self.path / "owner")
            self._owner.take(0)
            _OWNED.add(self.path)
            # Without a folder for them, logs and records are in the run directory and go with it.
            self.out = self.path / "out" if request.out is None else request.out.absolute()
            # Each session of a resumed run has a history of its own.
            history = str(self.out / "history" / self.id) if request.history else ""
            self.description = Description(
                os.getpid(), request.workers, str(self.out), request.command, request.schedule, ray,
                elapsed=request.elapsed or 0.0, nproc=request.nproc, history=history,
            )  # fmt: skip
            os.write(self._owner.file, json.dumps(asdict(self.description)).encode())

    @property
    def alive(self) -> bool:
        return True

    def close(self) -> None:
        """Remove the folder, then give up the lock."""
        with _locked_base():
            shutil.rmtree(self.path, ignore_errors=True)
            self._owner.release(0)
            _OWNED.discard(self.path)


class JoinedRun:
    """A run directory of another launcher: read, locked in parts, never removed."""

    def __init__(self, reference: str) -> None:
        live = live_runs()
        name = Path(reference).name
        if name not in live or ("/" in reference and Path(reference).resolve() != (base() / name).resolve()):
            known = f"live runs are {', '.join(live)}" if live else "no run is alive on this machine"
            raise SettingError(f"run {reference!r} is not alive: {known}; start one with `easgd launch -n 4 train.py`")
        self.id, self.path, self.description = name, base() / name, live[name]
        self.out = Path(self.description.out)
        with _locked_base():
            if not (self.path / "owner").exists():
                raise SettingError(f"run {reference!r} has just ended; `easgd launch --list` shows live runs")
            self._owner = RecordLocks.of(self.path / "owner")

    @property
    def alive(self) -> bool:
        """Whether the run's owner still holds its lock."""
        return not _is_unlocked(self._owner)

    def close(self) -> None:
        """Leave the folder as it is."""


class MachineDirectory:
    """Memory of the workers that a cluster's run has on this machine: all of them hold it, the last one removes it.

    What a former run, or former workers of this one that were all killed, have left is removed first.
    """

    _holders: ClassVar[dict[Path, int]] = {}  # in this process, whose record locks are one

    def __init__(self, run: str, node: str) -> None:
        self.path = base() / f"{run}{MACHINE}{node[:16]}"
        with _locked_base() as folder:
            for stale in _stale(folder):
                shutil.rmtree(stale, ignore_errors=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._owner = RecordLocks.of(self.path / "owner")
            self._owner.take(0, shared=True)
            self._holders[self.path] = self._holders.get(self.path, 0) + 1
            _OWNED.add(self.path)

    def close(self) -> None:
        """Let go of it; if nobody else holds it, remove it."""
        with _locked_base():
            self._holders[self.path] -= 1
            if self._holders[self.path]:
                return
            del self._holders[self.path]
            _OWNED.discard(self.path)
            self._owner.release(0)
            if _is_free(self.path):
                shutil.rmtree(self.path, ignore_errors=True)


Run = OwnedRun | JoinedRun
