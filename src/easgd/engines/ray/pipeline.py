"""A large exchange over a socket, overlapped with its own arithmetic: chunk by chunk, without giving up all or nothing.

    while it arrives     the distance from the center is summed up, each chunk while it is still in the cache
    under the lock       the whole message is judged: is it finite, is it near enough; then chunk by chunk applied
    at the same time     a thread of its own sends the chunks of the answer that are ready

Nothing is applied before the distance of the whole message is known, so the message is read twice. The distance is good
for the center as it was when the message began to arrive: if another exchange came in between, it is taken again under
the lock. A slow network holds up the sending thread, never the lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Thread

import torch
from torch import Tensor

from easgd.center.state import CenterState
from easgd.engines.ray.messages import Reply
from easgd.runtime import threading

LEAST = 2 << 20
"""Messages below this are handled whole."""

CHUNK = 1 << 20
"""Bytes of a chunk: a system call costs nothing beside it, and it stays in the cache."""

Send = Callable[[Reply, int], None]
SendBytes = Callable[[memoryview], None]


class PipelinedExchange:
    """One exchange on its way through a shard.

    Args:
        center: the stretch that the message will meet.
        send_head: sends the head of the reply, given the size of the answer.
        send_bytes: sends a part of the answer.
    """

    def __init__(self, center: CenterState, send_head: Send, send_bytes: SendBytes) -> None:
        self.center, self.version = center, center.version
        self.begun = False
        self.waited = 0.0
        """How long the shard's lock was awaited, for the reply."""
        self._send_head, self._send_bytes = send_head, send_bytes
        self._square, self._seen = 0.0, 0
        self._ready, self._size = 0, 0
        self._changed = threading.Condition()
        self._failure: OSError | None = None
        self._sender: Thread | None = None

    # receiving -------------------------------------------------------------------------------------------------

    def arrived(self, chunk: Tensor) -> None:
        """Take the distance of the bytes that have arrived next, a whole number of elements."""
        part = chunk.view(torch.float32)
        self._square += self.center.square(part, self._seen)
        self._seen += part.numel()

    def distance(self) -> float | None:
        """The message's distance, if the center is still what it was. The caller holds the shard's lock."""
        whole = self._seen == self.center.x.numel() and self.center.version == self.version
        return math.sqrt(self._square) if whole else None

    # sending ---------------------------------------------------------------------------------------------------

    def begin(self, reply: Reply, answer: Tensor) -> None:
        """Begin to send an answer, of which nothing is ready yet."""
        self.begun, self._size = True, answer.numel()
        self._sender = threading.Thread(target=self._send, args=(reply, answer), name="easgd-answer", daemon=True)
        self._sender.start()

    def ready(self, size: int) -> None:
        """Let the answer be sent up to this byte."""
        with self._changed:
            self._ready = size
            self._changed.notify()

    def finish(self) -> None:
        """Wait until all is sent; raise what the socket has raised."""
        if self._sender is not None:
            self._sender.join()
        if self._failure is not None:
            raise self._failure

    def give_up(self) -> None:
        """The answer will not be completed: end the sending thread."""
        with self._changed:
            self._failure = ConnectionError("the exchange has failed")
            self._changed.notify()

    def _send(self, reply: Reply, answer: Tensor) -> None:
        data, at = answer.numpy().data, 0
        try:
            self._send_head(reply, self._size)
            while at < self._size:
                end = self._wait_beyond(at)
                self._send_bytes(data[at:end])
                at = end
        except OSError as error:
            self._failure = error

    def _wait_beyond(self, at: int) -> int:
        """Wait until more than `at` bytes of the answer are ready; return how many."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready > at or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._ready
