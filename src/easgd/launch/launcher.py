"""The launcher: starts the workers of a run, restarts those that die, stops them, and leaves nothing behind.

It takes no part in the training. What a worker's end means:

    exit code 0                      the worker has left
    anything else                    it died: the center is told, it is recorded, and started again if restarts are left
    after Ctrl-C, or the run's end   it was stopped

The engine is behind `Backend`; everything here happens on the caller's thread.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import nullcontext
from types import FrameType
from typing import TYPE_CHECKING

from easgd.faults import Fault
from easgd.launch.backend import Backend, Ended
from easgd.launch.injection import Injector
from easgd.launch.observer import Observer, ObserverThread
from easgd.launch.output import say
from easgd.launch.target import APART
from easgd.runtime import time
from easgd.signals import handle_signals

if TYPE_CHECKING:
    from torch import Tensor

_POLL_SECONDS = 0.1
_SWEEP_SECONDS = 0.5
_KILL_SECONDS = 30.0
_FINAL = (2, APART)
"""Exit codes of workers that starting again would not help: the settings are bad, or it diverged and is done."""
# Some virtual machines announce AMX and then refuse it; torch in bf16 dies there without a word.
_REFUSED_INSTRUCTION = (
    "SIGILL means that this processor refused an instruction. If the script trains in bf16, take float32, or try "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE"
)


class Launcher:
    """Runs `workers` workers in the run of a backend, to its end.

    Args:
        backend: what starts them.
        workers: how many to start.
        restarts: how often each rank is started again after a death.
        grace: seconds between the first Ctrl-C and SIGKILL.
        faults: a plan of faults that happen to the workers. Who dies by it is brought back by it alone.
    """

    def __init__(
        self, backend: Backend, workers: int, *, restarts: int = 0, grace: float = 10.0, faults: Sequence[Fault] = ()
    ) -> None:  # fmt: skip
        self.backend, self.workers, self.restarts, self.grace = backend, workers, restarts, grace
        self.exit_codes: dict[int, int] = {}
        """Of each rank's last incarnation."""
        self.signal: int | None = None
        """The signal that ended the run early, if one did."""
        self.centers: dict[str, dict[str, Tensor]] = {}
        self._injector = Injector(faults, backend, self._start) if faults else None
        self._failure = 0  # exit code of the first worker that died for good
        self._living: set[int] = set()
        self._restarted: dict[int, int] = {}
        self._signals = 0
        self._stopping = self._said_sigill = False
        self._deadline = float("inf")
        self._next_sweep = 0.0

    def run(self, observer: Observer | None = None) -> int:
        """Start the workers, stay until all have ended, return the exit code."""
        backend = self.backend
        try:
            backend.open()
            with ObserverThread(observer, backend.reader()) if observer is not None else nullcontext():
                self._run_workers()
            if not backend.joined:
                self.centers = backend.final_centers()
                self._warn_of_no_center()
        finally:
            backend.close()
        return self._verdict()

    def _warn_of_no_center(self) -> None:
        if not (self.centers or self._failure or self.signal):
            say("warning: no worker called easgd.attach: each trained alone, and there is no center")

    def _run_workers(self) -> None:
        with handle_signals(self._on_signal):
            try:
                self._start_all()
                while self._living or self._to_come():
                    self._poll()
            finally:
                self._end_all()

    def _to_come(self) -> bool:
        """Whether all have died by the plan, and it lets one join again."""
        coming = self._injector is not None and self._injector.joins_are_left()
        return coming and not self._stopping and all(self.exit_codes.values())

    def _start_all(self) -> None:
        for _ in range(self.workers):
            if self._signals:
                break
            rank, _ = self._start(None)
            if self.backend.joined:
                say(f"joined run {self.backend.run_id} as worker {rank}")
                self._record("join", rank)

    def _start(self, rank: int | None) -> tuple[int, int]:
        rank, incarnation = self.backend.start(rank)
        self._living.add(rank)
        return rank, incarnation

    def _poll(self) -> None:
        for ended in self.backend.poll(_POLL_SECONDS):
            self._on_end(ended)
        if self._injector is not None and not self._stopping:
            for rank, what in self._injector.inject(self._living):
                self._record("fault", rank, what)
                say(f"by the plan of faults, worker {rank}: {what}")
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._sweep()
        if self.signal is not None and not self._stopping:
            say(f"{signal.Signals(self.signal).name}: stopping; once more to kill at once")
            self._stop()
        if self._signals > 1 or time.monotonic() > self._deadline:
            self.backend.kill_all()

    def _on_end(self, ended: Ended) -> None:
        """Record the end of a worker, tell the center, start it again or free its rank."""
        rank, incarnation, code, how = ended
        self._living.discard(rank)
        self.exit_codes[rank] = code
        died = code != 0 and not self._stopping
        planned = self._injector is not None and rank in self._injector.struck
        again = died and self._restarted.get(rank, 0) < self.restarts and code not in _FINAL and not planned
        self._record("stopped" if self._stopping else "death" if code else "leave", rank, how)
        self.backend.mark_dead(rank, incarnation, keep_rank=again or planned)
        if died:
            say(f"worker {rank} died ({how}); {self._others()}")
            if code == -signal.SIGILL and not self._said_sigill:
                self._said_sigill = True
                say(_REFUSED_INSTRUCTION)
        if again:
            self._restart(rank)
        elif died:
            self._failure = self._failure or (code if code > 0 else 1)

    def _restart(self, rank: int) -> None:
        self._restarted[rank] = self._restarted.get(rank, 0) + 1
        _, incarnation = self._start(rank)
        detail = f"incarnation {incarnation}, restart {self._restarted[rank]} of {self.restarts}"
        self._record("restart", rank, detail)
        say(f"worker {rank} starts again ({detail})")

    def _others(self) -> str:
        left = len(self._living)
        return f"{left} other{'s go' if left > 1 else ' goes'} on" if left else "none is left"

    def _sweep(self) -> None:
        """Look for other launchers' workers that came or died, or, having joined, for the end of the run."""
        if self.backend.joined:
            if not self._stopping and not self.backend.alive():
                say(f"run {self.backend.run_id} has ended; stopping")
                self._stop()
            return
        for event, rank, incarnation, detail in self.backend.changes():
            self._record(event, rank, detail)
            if event == "death":
                self.backend.mark_dead(rank, incarnation, keep_rank=False)
                say(f"joined worker {rank} died with its launcher; {self._others()}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; the second kills from here, because a terminal that is not read may block the loop."""
        self._signals += 1
        self.signal = self.signal or number
        if self._signals > 1:
            self.backend.kill_all()

    def _stop(self) -> None:
        self._stopping = True
        self._deadline = time.monotonic() + self.grace
        self.backend.interrupt_all()

    def _end_all(self) -> None:
        """Kill what still lives, whatever happened, and record it."""
        self._stopping = True
        end = time.monotonic() + _KILL_SECONDS
        while self._living and time.monotonic() < end:
            self.backend.kill_all()
            for ended in self.backend.poll(_POLL_SECONDS):
                self._on_end(ended)

    def _record(self, event: str, rank: int, detail: str = "") -> None:
        if self.backend.event_log is not None:
            self.backend.event_log.write(event, rank, detail)

    def _verdict(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        if self._failure and self.exit_codes and all(self.exit_codes.values()) and not self.backend.joined:
            say(f"all {len(self.exit_codes)} workers died")
        return self._failure
