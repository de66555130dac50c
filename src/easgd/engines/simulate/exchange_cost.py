"""What the exchange of a fragment costs on the virtual clock, who waits for whom, and how much of it steps hide."""

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

    def __init__(self, cost: CostModel, method: Method, center: Center, compression: str | None = None) -> None:
        self.cost, self.blocking = cost, method.delay == 0 or not cost.overlap
        self._pulls = cost.protocol == "pull-push" and method.is_elastic
        whole, sizes = center.x.numel(), [b - a for a, b in center.bounds]
        plain = whole * center.x.element_size() if cost.message_bytes is None else cost.message_bytes
        codec = Codec.named(compression)
        self.bytes_in_full = [plain * n // whole for n in sizes]
        self.message_bytes = self.bytes_in_full
        if compression is not None:
            self.message_bytes = [plain * codec.bytes(n) // (4 * whole) for n in sizes]
        self._work = [shard_work(cost, a, b, whole) for a, b in center.bounds]

    def seconds(self, participants: int, fragment: int) -> tuple[float, float]:
        """Time up to the center and time back, for one message among this many workers."""
        full = self.cost.transfer_seconds(self.message_bytes[fragment], participants)
        return (self.cost.latency if self._pulls else full), full

    def more_in_full(self, fragment: int) -> int:
        """Bytes that a fragment's message takes more when it goes over in float32."""
        return self.bytes_in_full[fragment] - self.message_bytes[fragment]

    def push_seconds(self, participants: int, fragment: int) -> float:
        """Time up to the center of what wants no answer."""
        return self.cost.transfer_seconds(self.message_bytes[fragment], participants)

    def service(self, fragment: int) -> float:
        """Time that the center works on one message if nobody is before it: that of its slowest shard."""
        return max(self._work[fragment].values())

    def work(self, fragment: int) -> dict[int, float]:
        """Time that each shard works on its part of a message; those that have none are left out."""
        return self._work[fragment]

    @property
    def occupied(self) -> float:
        """Time that the busiest shard works on one exchange of the whole vector."""
        return max(sum(work.get(k, 0.0) for work in self._work) for k in range(self.cost.shards))

    def exposed(self, worker: SimWorker, now: float, work: float) -> float:
        """Time that the worker's step of `work` seconds, from `now` on, cannot hide of exchanges of known length."""
        if self.blocking:
            return sum((flight.seconds for flight in worker.in_flight if flight.asked == worker.state.clock), 0.0)
        return sum((max(0.0, flight.seconds - (now - flight.began) - work) for flight in worker.due()), 0.0)


def shard_work(cost: CostModel, start: int, stop: int, whole: int) -> dict[int, float]:
    """Seconds of each shard for a message from element `start` to `stop`.

    Shards have equal shares of the vector, also of one that is simulated with fewer elements than there are shards.

    >>> shard_work(CostModel(service=0.8, request=0.1, shards=4), 0, 3, 6)
    {0: 0.30000000000000004, 1: 0.30000000000000004}
    """
    out = {}
    for k in range(cost.shards):
        share = min(stop * cost.shards, (k + 1) * whole) - max(start * cost.shards, k * whole)
        if share > 0:
            out[k] = cost.request + cost.service * (share / (whole * cost.shards))
    return out


class Queue:
    """Messages that wait for a center: each of its shards serves one at a time, in the order of arrival."""

    def __init__(self, shards: int) -> None:
        self.free_at = [0.0] * shards

    def enter(self, now: float, work: dict[int, float]) -> tuple[float, float]:
        """Put one message in line; return when its last shard has served it, and how long that one let it wait."""
        served, waited = now, 0.0
        for k, seconds in work.items():
            queued = max(0.0, self.free_at[k] - now)
            self.free_at[k] = now + queued + seconds
            if self.free_at[k] >= served:
                served, waited = self.free_at[k], queued
        return served, waited
