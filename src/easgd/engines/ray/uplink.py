"""The exchanges of a machine's center with the run's, carried by one of the machine's workers.

    x_m ← a copy of the machine's center between two exchanges;  D = α₂(x_m − x̃);  x̃ += D at the shards
    then x_m −= D on what the machine's center is by then: its workers have gone on

A worker that is killed between the two leaves a machine that has not felt the spring once: x̃ has D, x_m keeps it. The
next exchange pulls them together as any other difference. No message is applied twice: the shards' ledger knows the
worker that carries, its incarnation and its sequence.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from easgd.center.levels import upward_due, upward_rate
from easgd.engines.local.client import SharedMemoryClient
from easgd.engines.local.control import STRIPES, UPLINK
from easgd.engines.ray.client import RayCenterClient
from easgd.errors import CenterLostError, UnreachableError
from easgd.methods import Method
from easgd.runtime import threading, time

PATIENCE = 10
"""Exchanges in a row that the run's center may leave unanswered before the workers are told."""


class Uplink:
    """One worker's part in it: ask after every exchange of its own, carry if this worker holds the lock.

    Attributes:
        bytes_sent: over the network since it was last set to zero.
        exchanges: how many were carried from here.
    """

    def __init__(self, shared: SharedMemoryClient, upper: RayCenterClient, method: Method, period: int) -> None:
        self.shared, self.upper, self.method, self.period = shared, upper, method, period
        self.bytes_sent = self.exchanges = 0
        self._misses, self._since = 0, 0
        self._holds = self._closing = False
        self._due = threading.Event()
        self._thread: Any = None
        self.wire = threading.Semaphore(1)  # requests of this worker to the shards, one at a time
        self._error: Exception | None = None

    def exchanged(self) -> None:
        """This worker has exchanged with its machine: see whether the machine's turn with the run's center has come."""
        if self._error is not None:
            raise self._error
        if not self._holds:
            with self.shared.locks.threads:
                self._holds = self.shared.locks.try_take(UPLINK)
            if not self._holds:
                return
            self._since = self.shared.version - 1  # this worker's own exchange counts
            self._thread = threading.Thread(target=self._work, name="easgd-uplink", daemon=True)
            self._thread.start()
        if upward_due(self.shared.version - self._since, self.shared.living, self.period):
            self._due.set()

    def _work(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._closing:
                return
            try:
                self.carry()
            except UnreachableError as error:
                self._missed(error)
            except Exception as error:  # the worker raises it at its next exchange
                self._error = error
                return

    def _missed(self, error: UnreachableError) -> None:
        """Train on as a machine alone; what could not be delivered is taken up at the next exchange."""
        self._misses += 1
        self.upper.events.append(("unreachable", f"machine: {error}; {self._misses} of {PATIENCE} in a row"))
        if self._misses > PATIENCE:
            self._error = CenterLostError(f"{error}, {self._misses} exchanges of the machine in a row")

    def carry(self) -> None:
        """One exchange of the machine with the run's center."""
        shared, start = self.shared, time.perf_counter()
        with shared.locks.threads:  # the launcher, which marks the dead of a run on one machine, may be on another
            shared.control.mark_killed(shared.rank)
        self._since = shared.version
        scale = upward_rate(self.method, shared.living, max(self.upper.living, shared.living))
        with self.wire:
            answer = self.upper.exchange(shared.snapshot()["x"], scale)
            moved, self.upper.bytes_sent = self.upper.bytes_sent, 0
        self.bytes_sent += moved
        self._misses = 0
        if answer is None:
            self.upper.events.append(("refused", f"machine: {self.upper.refusal}"))
            return
        self._subtract(answer)
        self.exchanges += 1
        sqnorm = self.upper.update_sqnorm or 0.0
        detail = f"exchange {self.exchanges}: distance {sqnorm**0.5 / scale:.6g}, {moved} bytes"
        self.upper.events.append(("machine", f"{detail}, {time.perf_counter() - start:.3g} s"))

    def _subtract(self, answer: Tensor) -> None:
        """x_m −= D, stripe by stripe, beside no snapshot."""
        shared = self.shared
        x, locks = shared.segment.slots["x"], shared.locks
        with locks.threads:
            shared.snapshot_lock.enter()
            try:
                for s, (a, b) in enumerate(shared.segment.bounds):
                    with locks.hold(STRIPES + s):
                        x[a:b].sub_(answer[a:b])
            finally:
                shared.snapshot_lock.leave()

    def close(self, last: bool) -> None:
        """End the thread; the machine's last worker brings the run's center what it has not seen yet."""
        self._closing = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        locks = self.shared.locks
        with locks.threads:
            carries = last and self._error is None and (self._holds or locks.try_take(UPLINK))
        if carries and self.shared.version > self._since:
            try:
                self.carry()
            except UnreachableError as error:
                self._missed(error)
        with locks.threads:
            if self._holds or carries:
                locks.release(UPLINK)
        self._holds = False
