"""A device that is not there: its streams are queues that a script runs, early, late or in any legal order.

Work waits in its queue until a stream takes a step. A stream stops at a wait until the other one has passed the mark.
So a seeded choice of steps walks through the orders that a real device may take, and a test that sees wrong numbers in
one of them has found a wait that is missing. Device memory is host memory here, and full of NaN at first.
"""

import random
import threading

import torch


class Event:
    def __init__(self, device):
        self.device, self.passed = device, False

    def synchronize(self):
        """The host waits: streams go on, in the script's order, until this mark has been passed."""
        self.device.host_waits.append(threading.current_thread().name)
        if "host" not in self.device.missing:
            self.device.run_until(lambda: self.passed)


class Stream:
    def __init__(self, device, name):
        self.device, self.name, self.queue = device, name, []

    def run(self, work):
        self.device.given.append((self.name, threading.current_thread().name))
        self._put(work)

    def record(self):
        event = Event(self.device)
        self._put(lambda: setattr(event, "passed", True))
        return event

    def wait(self, event):
        if self.name not in self.device.missing:
            self._put(event)

    def _put(self, item):
        self.queue.append(item)
        self.device.progress()

    def step(self):
        """Do the first thing in the queue; False if there is none, or it must wait."""
        if not self.queue:
            return False
        first = self.queue[0]
        if isinstance(first, Event):
            if not first.passed:
                return False
        else:
            first()
        self.queue.pop(0)
        return True


class Device:
    """The backend of scripted streams.

    Args:
        seed: of the order in which the streams take their steps.
        missing: waits that are left out: "compute", "copy" (streams that do not wait), "host".
        immediate: whether the compute stream does everything at once, as tensors do that a script computes with.
    """

    asynchronous = True

    def __init__(self, seed=0, missing=(), immediate=False):
        self.random, self.missing, self.immediate = random.Random(seed), set(missing), immediate
        self.streams, self.lock = {}, threading.RLock()
        self.host_waits, self.given = [], []  # the threads that waited; (stream, thread) of all work

    def compute(self, device):
        return self._stream("compute", device)

    def copy(self, device):
        return self._stream("copy", device)

    def staging(self, size, device):
        memory = torch.empty(size)
        self.compute(device).run(lambda: memory.fill_(float("nan")))  # what its last owner still had to do
        return memory

    def pinned(self, size):
        return torch.full((size,), float("nan"))

    def _stream(self, name, device):
        return self.streams.setdefault((name, device), Stream(self, name))

    def progress(self):
        """Work was given: the streams go on as far as the script says."""
        with self.lock:
            if self.immediate:
                for (name, _), stream in self.streams.items():
                    while name == "compute" and stream.queue:
                        if not stream.step():
                            self._some_step()
                return
            for _ in range(self.random.choice([0, 0, 1, 5])):
                self._some_step()

    def run_until(self, passed):
        with self.lock:
            while not passed():
                self._some_step()

    def finish(self):
        """Let everything run to its end."""
        self.run_until(lambda: not any(stream.queue for stream in self.streams.values()))

    def _some_step(self):
        """Let one stream take its next step; one that keeps being chosen runs ahead of the others."""
        streams = list(self.streams.values())
        self.random.shuffle(streams)
        for stream in streams:
            if stream.step():
                return
        assert not any(stream.queue for stream in streams), "the streams wait for each other"
