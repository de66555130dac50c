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
from easgd.launch.output import Log, PipeRelay
from easgd.launch.process import Lifeline, sigint_blocked


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
    """

    def __init__(
        self, rank: int, incarnation: int, target: Sequence[str], environment: dict[str, str], logs: Path,
        lifeline: Lifeline, inherit: Sequence[int] = (), template: Template | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.incarnation = rank, incarnation
        outputs, theirs = zip(os.pipe(), os.pipe(), strict=True)
        try:
            self.pid = _start(target, environment, theirs, lifeline, inherit, template)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._log = Log(logs / f"worker-{rank}.log")
        self.streams = [
            PipeRelay(outputs[0], rank, self._log, "stdout"),
            PipeRelay(outputs[1], rank, self._log, "stderr"),
        ]

    @property
    def ended(self) -> bool:
        """Whether it has ended. It is not reaped yet: until `close`, its number cannot belong to another process."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def paused(self) -> bool:
        """Whether a signal has stopped it, as SIGSTOP does; never where there is no /proc."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")

    def interrupt(self) -> None:
        """Send SIGINT."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it at once, with the processes it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Clear up after its end; return the exit code, negative for a signal."""
        self.kill()  # what it started and left behind
        _, status = os.waitpid(self.pid, 0)
        for stream in self.streams:
            stream.finish()
            os.close(stream.descriptor)
        self._log.close()
        return os.waitstatus_to_exitcode(status)


def _start(
    target: Sequence[str], environment: dict[str, str], outputs: Sequence[int], lifeline: Lifeline,
    inherit: Sequence[int], template: Template | None,
) -> int:  # fmt: skip
    """Start a child that writes to `outputs`; return its process id, which is also that of its group."""
    stdout, stderr = outputs
    if template is not None:
        with suppress(OSError):  # it was killed: a new interpreter takes longer, and says what is wrong
            return template.start(target, environment, stdout, stderr)
    command = [sys.executable, "-m", "easgd.engines.local.child", str(os.getpid()), str(lifeline.read), *target]
    with sigint_blocked():
        # A session of its own: the terminal's Ctrl-C reaches the launcher only, which then decides.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True, pass_fds=(lifeline.read, *inherit),
        )  # fmt: skip
    process.returncode = 0  # `WorkerProcess.close` reaps it; Popen must not
    return process.pid
