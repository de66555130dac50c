"""One worker's process, as its launcher sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from easgd.launch.output import Log, PipeRelay
from easgd.launch.process import Lifeline, sigint_blocked


class WorkerProcess:
    """A spawned worker: its process group, its pipes, its end."""

    def __init__(
        self,
        rank: int,
        incarnation: int,
        target: Sequence[str],
        environment: dict[str, str],
        logs: Path,
        lifeline: Lifeline,
        inherit: Sequence[int] = (),
    ) -> None:
        self.rank, self.incarnation = rank, incarnation
        command = [
            sys.executable, "-m", "easgd.engines.local.child", str(os.getpid()), str(lifeline.read), *target
        ]  # fmt: skip
        with sigint_blocked():
            # A session of its own: the terminal's Ctrl-C reaches the launcher only, which then decides.
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, pass_fds=(lifeline.read, *inherit), bufsize=0,
            )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._log = Log(logs / f"worker-{rank}.log")
        self.streams = [
            PipeRelay(self._process.stdout.fileno(), rank, self._log, "stdout"),
            PipeRelay(self._process.stderr.fileno(), rank, self._log, "stderr"),
        ]

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended. It is not reaped yet: until `close`, its number cannot belong to another process."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

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
        code = self._process.wait()
        for stream, pipe in zip(self.streams, (self._process.stdout, self._process.stderr), strict=True):
            stream.finish()
            if pipe is not None:
                pipe.close()
        self._log.close()
        return code
