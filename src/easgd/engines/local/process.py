"""One worker's process, as its launcher sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from easgd.engines.local.template import Template
from easgd.groups.store import LISTEN
from easgd.launch.output import Log, PipeRelay
from easgd.launch.process import Lifeline, describe_exit, sigint_blocked


class WorkerProcess:
    """A worker's process: its group, its pipes, its end.

    Args:
        rank: of the worker.
        incarnation: how often this rank was started before.
        target: what the child runs, see `child`.
        environment: all of its environment.
        logs: folder of the workers' logs.
        lifeline: closes with the launcher.
        inherit: descriptors that it gets.
        template: forks it; None starts a new interpreter.
        label: what its lines and its log are marked with; the rank if None.
        store: the socket of the store that it serves, as the first rank of a group.
    """

    def __init__(
        self, rank: int, incarnation: int, target: Sequence[str], environment: dict[str, str], logs: Path,
        lifeline: Lifeline, inherit: Sequence[int] = (), template: Template | None = None, *,
        label: str | None = None, store: int | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.incarnation = rank, incarnation
        outputs, theirs = zip(os.pipe(), os.pipe(), strict=True)
        try:
            self.pid = _start(target, environment, theirs, lifeline, inherit, template, store)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        label = str(rank) if label is None else label
        self._log = Log(logs / f"worker-{label}.log")
        self.streams = [
            PipeRelay(outputs[0], label, self._log, "stdout"),
            PipeRelay(outputs[1], label, self._log, "stderr"),
        ]

    @property
    def ended(self) -> bool:
        """Whether it has ended. It is not reaped yet: until `close`, its number cannot belong to another process."""
        return self._end() is not None

    @property
    def failed(self) -> bool:
        """Whether it has ended otherwise than with exit code 0."""
        return bool(self._end())

    def _end(self) -> int | None:
        """Return its exit code, or the number of the signal that ended it; None while it lives."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_status

    @property
    def processes(self) -> list[WorkerProcess]:
        """The processes that the worker is made of: one; a group has several."""
        return [self]

    @property
    def paused(self) -> bool:
        """Whether a signal has stopped it, as SIGSTOP does; never where there is no /proc."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")

    def interrupt(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it at once, with the processes it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> tuple[int, str]:
        """Clear up after its end; return the exit code, negative for a signal, and say how it ended."""
        self.kill()  # what it started and left behind
        _, status = os.waitpid(self.pid, 0)
        for stream in self.streams:
            stream.finish()
            os.close(stream.descriptor)
        self._log.close()
        code = os.waitstatus_to_exitcode(status)
        return code, describe_exit(code)


def _start(
    target: Sequence[str], environment: dict[str, str], outputs: Sequence[int], lifeline: Lifeline,
    inherit: Sequence[int], template: Template | None, store: int | None,
) -> int:  # fmt: skip
    """Start a child that writes to `outputs`; return its process id, which is also that of its group."""
    stdout, stderr = outputs
    stores = [] if store is None else [store]
    served = {} if store is None else {LISTEN: str(store)}
    if template is not None:
        with suppress(OSError):  # it was killed: a new interpreter takes longer, and says what is wrong
            return template.start(target, environment, stdout, stderr, inherit=inherit, store=store)
    command = [sys.executable, "-m", "easgd.engines.local.child", str(os.getpid()), str(lifeline.read), *target]
    with sigint_blocked():
        # A session of its own: the terminal's Ctrl-C reaches the launcher only, which then decides.
        process = subprocess.Popen(
            command, env=environment | served, stdin=subprocess.DEVNULL, stdout=stdout,
            stderr=stderr, start_new_session=True, pass_fds=(lifeline.read, *inherit, *stores),
        )  # fmt: skip
    process.returncode = 0  # `WorkerProcess.close` reaps it; Popen must not
    return process.pid
