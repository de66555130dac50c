"""What the exchange of a fragment costs on the virtual clock, and how much of it a worker's steps hide."""

from __future__ import annotations

from easgd.center.whole import Center
from easgd.compress import Codec
from easgd.engines.simulate.cost import CostModel
from easgd.engines.simulate.sim_worker import SimWorker
from easgd.methods import Method


class ExchangeCost:
    """Bytes and seconds of one exchange, which follow the size of its fragment.

    Attributes:
        message_bytes: of each fragment's message, one way.
        bytes_in_full: of each fragment's message that goes over in float32, whatever the compression.
        blocking: whether a worker waits for its answer as soon as it has asked.
    """

    def __init__(self, cost: CostModel, method: Method, center: Center, compression: str | None) -> None:
        self.cost, self.blocking = cost, method.delay == 0 or not cost.overlap
        self._pulls = cost.protocol == "pull-push" and method.answers_with == "difference"
        self._whole, self._sizes = center.x.numel(), [b - a for a, b in center.bounds]
        plain = self._whole * center.x.element_size() if cost.message_bytes is None else cost.message_bytes
        codec = Codec.named(compression)
        self.bytes_in_full = [plain * n // self._whole for n in self._sizes]
        self.message_bytes = self.bytes_in_full
        if compression is not None:
            self.message_bytes = [plain * codec.bytes(n) // (4 * self._whole) for n in self._sizes]

    def seconds(self, participants: int, fragment: int) -> tuple[float, float]:
        """Time up to the center and time back, for one message among this many workers."""
        full = self.cost.transfer_seconds(self.message_bytes[fragment], participants)
        return (self.cost.latency if self._pulls else full), full

    def push_seconds(self, participants: int, fragment: int) -> float:
        """Time up to the center of what wants no answer."""
        return self.cost.transfer_seconds(self.message_bytes[fragment], participants)

    def service(self, fragment: int) -> float:
        """Time that the center works on one message."""
        return self.cost.service * (self._sizes[fragment] / self._whole)

    def exposed(self, worker: SimWorker, now: float, work: float) -> float:
        """Time that the worker's step of `work` seconds, from `now` on, cannot hide of exchanges of known length."""
        if self.blocking:
            return sum((flight.seconds for flight in worker.in_flight if flight.asked == worker.state.clock), 0.0)
        return sum((max(0.0, flight.seconds - (now - flight.began) - work) for flight in worker.due()), 0.0)
