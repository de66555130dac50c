"""The clock and the threads of code that can be simulated.

A module that takes `time` and `threading` from here uses Python's own, at the same cost. The simulation of the engines
(`tests/support/chaos`) puts a virtual clock and threads of one seeded scheduler in their place while it runs; the locks
between processes, in `easgd.locks`, too.
"""

from __future__ import annotations

import threading as _threading
import time as _time
from collections.abc import Callable
from concurrent import futures as _futures
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass
class Clock:
    """What is used of Python's `time`."""

    time: Callable[[], float] = _time.time
    monotonic: Callable[[], float] = _time.monotonic
    monotonic_ns: Callable[[], int] = _time.monotonic_ns
    perf_counter: Callable[[], float] = _time.perf_counter
    sleep: Callable[[float], None] = _time.sleep


@dataclass
class Threads:
    """What is used of Python's `threading`, and its pool of threads."""

    Thread: type[_threading.Thread] = _threading.Thread
    RLock: Callable[[], AbstractContextManager[object]] = _threading.RLock
    Condition: type[_threading.Condition] = _threading.Condition
    Event: type[_threading.Event] = _threading.Event
    Semaphore: type[_threading.Semaphore] = _threading.Semaphore
    Timer: type[_threading.Timer] = _threading.Timer
    ThreadPoolExecutor: type[_futures.ThreadPoolExecutor] = _futures.ThreadPoolExecutor


time = Clock()
threading = Threads()
