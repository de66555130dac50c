"""A worker that is a group of processes, as its launcher sees it: it ends when any of its ranks fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from easgd.engines.local.process import WorkerProcess
from easgd.engines.local.template import Template
from easgd.groups.store import bound, rank_environment
from easgd.launch.output import PipeRelay
from easgd.launch.process import Lifeline, describe_exit


class WorkerProcesses:
    """The processes of one group. Its surface is that of `WorkerProcess`."""

    def __init__(
        self, rank: int, incarnation: int, nproc: int, target: Sequence[str], environment: dict[str, str], logs: Path,
        lifeline: Lifeline, inherit: Sequence[int], template: Template | None, *, run: str,
    ) -> None:  # fmt: skip
        self.rank, self.incarnation = rank, incarnation
        self._failed: int | None = None
        self._stopping = False
        self.processes: list[WorkerProcess] = []
        with bound() as server:
            host, port = server.getsockname()
            for member in range(nproc):
                own = environment | rank_environment(rank, member, nproc, host, port, run)
                if sys.platform != "linux":
                    own.pop("GLOO_SOCKET_IFNAME", None)  # the loopback has another name there
                process = WorkerProcess(
                    rank, incarnation, target, own, logs, lifeline, inherit, template, label=f"{rank}.{member}",
                    store=server.fileno() if member == 0 else None,
                )  # fmt: skip
                self.processes.append(process)

    @property
    def streams(self) -> list[PipeRelay]:
        return [stream for member in self.processes for stream in member.streams]

    @property
    def ended(self) -> bool:
        """Whether all have ended. The first that fails ends the others: they could only wait for it."""
        if self._failed is None and not self._stopping:
            self._failed = next((m for m, member in enumerate(self.processes) if member.failed), None)
            if self._failed is not None:
                self.kill()
        return all(member.ended for member in self.processes)

    def interrupt(self) -> None:
        """Send SIGINT to all; then each ends by itself."""
        self._stopping = True
        for member in self.processes:
            member.interrupt()

    def kill(self) -> None:
        for member in self.processes:
            member.kill()

    def close(self) -> tuple[int, str]:
        """Clear up; return the exit code of the rank that failed first, and say which it was."""
        codes = [member.close()[0] for member in self.processes]
        failed = self._failed
        if failed is None:
            failed = next((m for m, code in enumerate(codes) if code), 0)
        which = f"rank {failed} of its {len(codes)}: " if codes[failed] else ""
        return codes[failed], f"{which}{describe_exit(codes[failed])}"
