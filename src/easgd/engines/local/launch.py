"""The launcher: starts the workers, watches them, lets the living go on, and leaves nothing behind.

It takes no part in the training: workers exchange on the center directly. What it does when a worker ends:

    exit code 0                      the worker has left
    anything else                    it died: told to the center, recorded, started again if restarts are left
    after Ctrl-C, or the run's end   it was stopped

One thread does it all, in turns of at most a tenth of a second.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence
from types import FrameType

from easgd.engines.local.control import origin
from easgd.engines.local.environment import worker_environment
from easgd.engines.local.process import Lifeline, WorkerProcess, describe_exit
from easgd.engines.local.ranks import Ranks
from easgd.engines.local.undertaker import DeathMarker
from easgd.launch.event_log import EventLog, prepare
from easgd.launch.output import say
from easgd.launch.run_directory import JoinedRun, Run
from easgd.signals import handle_signals

_TURN = 0.1
_SWEEP = 0.5
_BAD_INPUT = 2
"""Exit code of a worker that refused its settings: starting it again would only repeat the message."""


class Launcher:
    """Runs `workers` processes of one target in a run that it owns or joins.

    Args:
        run: an `OwnedRun` or a `JoinedRun`; the caller closes it.
        target: the child's arguments: ["script", path, …], ["module", name, …] or ["function", descriptor].
        workers: how many processes to start.
        restarts: how often each rank is started again after a death.
        grace: seconds between the first Ctrl-C and SIGKILL.
        inherit: descriptors that the children keep open.
        resumed: the run goes on from an earlier one, whose records stay where they are.
    """

    def __init__(
        self,
        run: Run,
        target: Sequence[str],
        workers: int,
        *,
        restarts: int = 0,
        grace: float = 10.0,
        inherit: Sequence[int] = (),
        resumed: bool = False,
    ) -> None:
        self.directory, self.target, self.workers = run, target, workers
        self.restarts, self.grace, self.inherit, self.resumed = restarts, grace, inherit, resumed
        self.exit_codes: dict[int, int] = {}
        self.signal: int | None = None
        """The signal that ended the run early, if one did."""
        self._failure = 0  # exit code of the first worker that died for good
        self._living: dict[int, WorkerProcess] = {}
        self._restarted: dict[int, int] = {}
        self._presses = 0
        self._stopping = False
        self._deadline = float("inf")
        self._next_sweep = 0.0

    @property
    def joins(self) -> bool:
        """Whether the run belongs to another launcher."""
        return isinstance(self.directory, JoinedRun)

    def run(self) -> int:
        """Start the workers, stay until all have ended, return the exit code."""
        with handle_signals(self._pressed):
            if not self.joins:
                prepare(self.directory.out, resumed=self.resumed)
            self._event_log = EventLog(
                self.directory.out, lambda: origin(self.directory.path) or self.directory.description.origin
            )  # fmt: skip
            self._ranks, self._selector = Ranks(self.directory.path), selectors.DefaultSelector()
            self._lifeline, self._death_marker = Lifeline(), DeathMarker(self.directory.path)
            try:
                self._start_all()
                while self._living:
                    self._turn()
            finally:
                self._close()
        return self._verdict()

    # starting ------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        for _ in range(self.workers):
            if self._presses:
                break
            rank = self._ranks.take()
            self._start(rank)
            if self.joins:
                say(f"joined run {self.directory.id} as worker {rank}")
                self._event_log.write("join", rank)

    def _start(self, rank: int) -> None:
        incarnation = self._ranks.start(rank)
        environment = worker_environment(self.directory, rank, incarnation)
        logs = self.directory.out / "logs"
        worker = WorkerProcess(rank, incarnation, self.target, environment, logs, self._lifeline, self.inherit)
        self._living[rank] = worker
        for stream in worker.streams:
            self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)

    # watching ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Pass on output, look after ends, stop if asked to."""
        for key, _ in self._selector.select(_TURN):
            if not key.data.pump():  # readable, and nothing there: its end
                self._selector.unregister(key.fileobj)
        for worker in [worker for worker in self._living.values() if worker.ended]:
            self._mark_dead(worker)
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP
            self._sweep()
        self._obey()

    def _mark_dead(self, worker: WorkerProcess) -> None:
        """A worker has ended: record it, tell the center, start it again or give its rank back."""
        rank = worker.rank
        del self._living[rank]
        for stream in worker.streams:
            if stream.descriptor in self._selector.get_map():
                self._selector.unregister(stream.descriptor)
        code = self.exit_codes[rank] = worker.close()
        how = describe_exit(code)
        self._event_log.write("stopped" if self._stopping else "death" if code else "leave", rank, how)
        self._death_marker.mark_dead(rank, worker.incarnation)
        self._ranks.end(rank)
        if code and not self._stopping:
            say(f"worker {rank} died ({how}); {self._others()}")
            if self._restarted.get(rank, 0) < self.restarts and code != _BAD_INPUT:
                self._restart(rank)
                return
            self._failure = self._failure or (code if code > 0 else 1)
        self._ranks.release(rank)

    def _others(self) -> str:
        return f"{len(self._living)} go on" if self._living else "none is left"

    def _restart(self, rank: int) -> None:
        self._restarted[rank] = self._restarted.get(rank, 0) + 1
        self._start(rank)
        detail = f"incarnation {self._living[rank].incarnation}, restart {self._restarted[rank]} of {self.restarts}"
        self._event_log.write("restart", rank, detail)
        say(f"worker {rank} starts again ({detail})")

    def _sweep(self) -> None:
        """Look beyond the own workers: those whose launcher was killed, or, having joined, the run's own end."""
        if self.joins:
            if not self.directory.alive and not self._stopping:
                say(f"run {self.directory.id} has ended; stopping")
                self._stop()
            return
        for rank, incarnation in self._ranks.lost():
            self._event_log.write("death", rank, "its launcher was killed")
            self._death_marker.mark_dead(rank, incarnation)
            say(f"joined worker {rank} died with its launcher; {self._others()}")

    # stopping ------------------------------------------------------------------------------------------------

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; the second kills from here: a terminal that does not read may be holding up the loop."""
        self._presses += 1
        self.signal = self.signal or number
        if self._presses > 1:
            self._kill_all()

    def _obey(self) -> None:
        """Stop as the signals so far and the grace period ask."""
        if self.signal is not None and not self._stopping:
            say(f"{signal.Signals(self.signal).name}: stopping; once more to kill at once")
            self._stop()
        if self._presses > 1 or time.monotonic() > self._deadline:
            self._kill_all()

    def _stop(self) -> None:
        self._stopping = True
        self._deadline = time.monotonic() + self.grace
        for worker in self._living.values():
            worker.interrupt()

    def _kill_all(self) -> None:
        for worker in list(self._living.values()):
            worker.kill()

    def _close(self) -> None:
        """Leave nothing behind, whatever happened."""
        self._stopping = True
        self._kill_all()
        for worker in list(self._living.values()):
            self._mark_dead(worker)
        self._death_marker.close()
        self._selector.close()
        self._lifeline.close()
        self._ranks.close()

    def _verdict(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        if self._failure and self.exit_codes and all(self.exit_codes.values()) and not self.joins:
            say(f"all {len(self.exit_codes)} workers died")
        return self._failure
