"""Parameters on accelerators, copied to the host and back while the device computes.

Each device has a copy stream and a staging vector, in float32 and as long as the parameters there. Host memory is
pinned. What happens where, and in which order:

    read    compute stream: staging ← parameters     copy stream: host ← staging     the host waits, on any thread
    add     copy stream: staging ← host              compute stream: parameters += staging

The parameters may change as soon as they are in the staging vector: the step does not wait for the copy to the host.
Nor does the compute stream wait for a message to be answered: an answer is copied when it has come. Three rules keep
the memory whole, each in one place of `Lane`: the compute stream uses the staging vector after the copies so far, the
copy stream after the computations so far, and the host uses pinned memory after the copies so far.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from easgd.streams import Backend, Event, Stream, backend_for

Change = Callable[[list[Tensor], list[Tensor]], object]
Ahead = Iterable[tuple[int, Tensor, float]]
"""What is added to parameter i on the way: (i, vector, factor)."""


class Lane:
    """One device: its copy stream, its staging vector, and who used that last.

    Args:
        which: the indices of its parameters in the model.
        spans: (first, last) element of each in the flat vector.
    """

    def __init__(self, device: torch.device, which: list[int], spans: list[tuple[int, int]], backend: Backend) -> None:
        self.device, self.which, self.backend = device, which, backend
        self.staging = backend.staging(sum(b - a for a, b in spans), device)
        self.parts = list(torch.split(self.staging, [b - a for a, b in spans]))
        self._stretches = joined(spans)
        self._copies: Stream = backend.copy(device)
        self._copied: Event | None = None
        # The staging vector's memory may have been another tensor's, which the device has yet to compute with.
        self._used: Event = backend.compute(device).record()

    def compute(self, work: Callable[[], object]) -> None:
        """Use the staging vector on the compute stream."""
        stream = self.backend.compute(self.device)
        if self._copied is not None:
            stream.wait(self._copied)
        stream.run(work)
        self._used = stream.record()

    def to_host(self, host: Tensor) -> None:
        """Begin to copy the staging vector to its places in the host's vector."""
        self._copy([(host[a:b], part) for a, b, part in self._places()])

    def from_host(self, host: Tensor) -> None:
        """Begin to copy the places of the host's vector to the staging vector."""
        self._copy([(part, host[a:b]) for a, b, part in self._places()])

    def wait(self) -> None:
        """Let the host wait for the copies so far."""
        if (copied := self._copied) is not None:
            copied.synchronize()

    def _copy(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        def copy() -> None:
            for target, source in pairs:
                target.copy_(source, non_blocking=self.backend.asynchronous)

        self._copies.wait(self._used)
        self._copies.run(copy)
        self._copied = self._copies.record()

    def _places(self) -> Iterable[tuple[int, int, Tensor]]:
        parts = torch.split(self.staging, [b - a for a, b in self._stretches])
        return ((a, b, part) for (a, b), part in zip(self._stretches, parts, strict=True))


class DeviceCopies:
    """The parameters of a model of which some are on devices, as one vector in host memory.

    Calls may come from the training thread and from the one that carries messages. Parameters are given to each call:
    a module may replace their memory at any time.
    """

    def __init__(self, sizes: Sequence[int], devices: Sequence[torch.device]) -> None:
        ends = list(itertools.accumulate(sizes))
        spans = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._in_host_memory = [(i, *spans[i]) for i, device in enumerate(devices) if device.type == "cpu"]
        elsewhere = dict.fromkeys(device for device in devices if device.type != "cpu")
        self._backend = backend_for(elsewhere)
        self._lanes = []
        for device in elsewhere:
            which = [i for i, d in enumerate(devices) if d == device]
            self._lanes.append(Lane(device, which, [spans[i] for i in which], self._backend))
        self._size = ends[-1]
        self._host = self._backend.pinned(self._size)
        self._outgoing: Tensor | None = None
        self._arriving: Tensor | None = None
        self._lock = threading.Lock()

    def read(self, params: Sequence[Tensor], ahead: Ahead = ()) -> Tensor:
        """Begin to copy the parameters to the host; the vector that is returned is whole after `wait`."""
        moved = {i: (vector, factor) for i, vector, factor in ahead}

        def put_aside(parts: list[Tensor], which: list[int]) -> None:
            torch._foreach_copy_(parts, [params[i] for i in which])
            for part, i in zip(parts, which, strict=True):
                if i in moved:
                    part.add_(moved[i][0], alpha=moved[i][1])

        with self._lock:
            self._arriving = None
            for lane in self._lanes:
                lane.compute(partial(put_aside, lane.parts, lane.which))
                lane.to_host(self._host)
            for i, a, b in self._in_host_memory:
                put_aside([self._host[a:b]], [i])
        return self._host

    def wait(self) -> None:
        """Let the calling thread wait for the copies so far."""
        for lane in self._lanes:
            lane.wait()

    def send(self, vector: Tensor) -> None:
        """Begin to copy a vector to the devices, where `apply` will need it."""
        with self._lock:
            self._send(vector)

    def apply(self, change: Change, params: Sequence[Tensor], vector: Tensor) -> None:
        """Change the parameters by a vector: `change(parameters, their parts of the vector)`, on each device."""
        with self._lock:
            if self._arriving is not vector:
                self._send(vector)
            self._arriving = None
            for lane in self._lanes:
                lane.compute(partial(change, [params[i] for i in lane.which], lane.parts))
            for i, a, b in self._in_host_memory:
                change([params[i]], [vector[a:b]])

    def _send(self, vector: Tensor) -> None:
        """Copy from pinned memory of our own, so that the caller may do with the vector what it likes.

        An answer in the message's memory is there already; only the next message, copied after it, overwrites it.
        """
        source = vector
        if vector is not self._host:
            if self._outgoing is None:
                self._outgoing = self._backend.pinned(self._size)
            self.wait()  # the last vector may not have left
            source = self._outgoing.copy_(vector)
        for lane in self._lanes:
            lane.from_host(source)
        self._arriving = vector


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring spans: one copy of many megabytes is faster than a thousand small ones.

    >>> joined([(0, 2), (2, 5), (7, 8)])
    [(0, 5), (7, 8)]
    """
    out: list[tuple[int, int]] = []
    for a, b in spans:
        if out and out[-1][1] == a:
            out[-1] = (out[-1][0], b)
        else:
            out.append((a, b))
    return out
