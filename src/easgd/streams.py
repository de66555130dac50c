"""The streams of a device: queues of work that run beside each other and beside the host.

`DeviceCopies` needs four things of a device and gets them from a `Backend`: the stream that computes, a stream for
copies, memory there, and memory of the host that a copy can use while the host goes on. `Accelerator` takes them from
torch, whatever the make of the device. `Synchronous` serves devices without streams of their own: everything is done
when the call returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A mark in a stream, passed when all work before it is done."""

    def synchronize(self) -> None:
        """Let the calling thread of the host wait until the mark is passed."""


class Stream(Protocol):
    """Work of one device that runs in the order in which it was given."""

    def run(self, work: Callable[[], object]) -> None:
        """Give the stream what `work` does; it may run later."""

    def record(self) -> Event:
        """Mark the end of the work given so far."""

    def wait(self, event: Event) -> None:
        """Let the work given from now on begin after the mark of another stream; the host does not wait."""


class Backend(Protocol):
    """A device's streams and memory.

    Attributes:
        asynchronous: whether a copy may be under way when the call that made it has returned.
    """

    asynchronous: bool

    def compute(self, device: torch.device) -> Stream:
        """Return the stream on which the calling thread computes now."""

    def copy(self, device: torch.device) -> Stream:
        """Return the stream for copies to and from this device."""

    def staging(self, size: int, device: torch.device) -> Tensor:
        """Return float32 memory on the device."""

    def pinned(self, size: int) -> Tensor:
        """Return float32 memory of the host for copies."""


def backend_for(devices: Collection[torch.device]) -> Backend:
    """Return the backend of devices that are not the CPU."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "mps":  # Metal has one stream: nothing can run beside it
        return Synchronous()
    return Accelerator() if all(device.type == accelerator.type for device in devices) else Synchronous()


class Accelerator:
    """The streams of `torch.accelerator`: CUDA, ROCm, XPU and others."""

    asynchronous = True

    def compute(self, device: torch.device) -> Stream:
        return AcceleratorStream(torch.accelerator.current_stream(device))

    def copy(self, device: torch.device) -> Stream:
        return copy_stream(device)

    def staging(self, size: int, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, pin_memory=True)


class AcceleratorStream:
    """A `torch.Stream`."""

    def __init__(self, stream: torch.Stream) -> None:
        self.stream = stream

    def run(self, work: Callable[[], object]) -> None:
        with self.stream:
            work()

    def record(self) -> torch.Event:
        event = torch.Event(self.stream.device, blocking=True)  # a host thread that waits sleeps: no core is burnt
        event.record(self.stream)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.Event)
        self.stream.wait_event(event)


@functools.cache
def copy_stream(device: torch.device) -> AcceleratorStream:
    """Return this process's copy stream of a device: all models and parts of models share it."""
    return AcceleratorStream(torch.Stream(device))


class Synchronous:
    """One stream that is always idle: each piece of work is done when `run` returns."""

    asynchronous = False

    def compute(self, device: torch.device) -> Stream:
        return self

    def copy(self, device: torch.device) -> Stream:
        return self

    def staging(self, size: int, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32)

    def run(self, work: Callable[[], object]) -> None:
        work()

    def record(self) -> Event:
        return self

    def wait(self, event: Event) -> None:
        """It has passed."""

    def synchronize(self) -> None:
        """It has passed."""
