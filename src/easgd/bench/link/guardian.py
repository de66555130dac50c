"""Removes a laboratory when its owner ends, also by SIGKILL.

A child process in a session of its own waits until its owner dies or closes a pipe. Then it kills all processes in the
laboratory's namespaces, deletes these, and removes the laboratory's folder. A laboratory whose guardian was killed too
is removed by the next one: the names of its namespaces carry the owner's process id and start time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PREFIX = "easgd-lab-"
SECONDS = 20.0
"""How long killed processes are waited for."""
_numbers = itertools.count()


def new_tag() -> str:
    """Return a name for a laboratory of this process."""
    return f"{PREFIX}{identity(os.getpid())}-{next(_numbers)}"


def namespaces(tag: str) -> tuple[str, str]:
    """Return the names of the namespaces of a laboratory."""
    return f"{tag}-a", f"{tag}-b"


def folder(tag: str) -> Path:
    """Return the folder of a laboratory: a short path, since names of Ray's Unix sockets are limited to 107 bytes."""
    return Path("/tmp") / tag


def start(tag: str) -> subprocess.Popen[bytes]:
    """Start the guardian of a laboratory; it waits for this process."""
    # A plain file, run without site-packages: it is up in milliseconds and imports nothing that could be broken.
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), tag]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def finish(guardian: subprocess.Popen[bytes]) -> None:
    """Let the guardian clean up, and wait until it has."""
    assert guardian.stdin is not None
    guardian.stdin.close()
    guardian.wait(2 * SECONDS)


def identity(pid: int) -> str | None:
    """Return "pid-starttime", which no later process has; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else f"{pid}-{fields[19]}"


def clean_stale() -> list[str]:
    """Remove the laboratories of owners that are gone; return their tags."""
    names = [path.name for path in Path("/run/netns").glob(f"{PREFIX}*-[ab]")]
    tags = {name[:-2] for name in names} | {path.name for path in Path("/tmp").glob(f"{PREFIX}*")}
    stale = sorted(tag for tag in tags if not _owned(tag))
    for tag in stale:
        remove(tag)
    return stale


def _owned(tag: str) -> bool:
    owner = tag.removeprefix(PREFIX).rpartition("-")[0]
    pid = owner.partition("-")[0]
    return pid.isdigit() and identity(int(pid)) == owner


def pids_in(name: str) -> list[int]:
    """Return the ids of the processes in a namespace; none if it does not exist."""
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def remove(tag: str) -> None:
    """Kill all processes of a laboratory, delete its namespaces and its folder."""
    names = namespaces(tag)
    end = time.monotonic() + SECONDS
    # Again until nobody is left: a process may have started another one meanwhile.
    while time.monotonic() < end and (pids := [pid for name in names for pid in pids_in(name)]):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    shutil.rmtree(folder(tag), ignore_errors=True)


def _wait(owner: int) -> None:
    """Return when the owner has ended or has closed the pipe."""
    with contextlib.suppress(ProcessLookupError):
        # Children that the owner forked hold the pipe open too: only the descriptor of the process tells its death.
        select.select([0, os.pidfd_open(owner)], [], [])


def main(owner: int, tag: str) -> None:
    """Wait for the owner's end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _wait(owner)
    remove(tag)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
