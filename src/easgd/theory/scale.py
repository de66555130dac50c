"""How far a run scales: shards, period, speed and bytes of n machines on a network, and where the center saturates.

A message has M bytes each way. S shards serve M/S of it each, on S of the n machines. An exchange occupies

    a shard's processor   c = request + 2(M/S)/rate                          (`easgd bench scale` measures both)
    a shard's link        l = (M/S)/B in each direction, and M/n for what its own machine sends

and with A exchanges a second of all workers the busiest of the two is taken for A·max(c, l) of its time: the center
saturates at 1, and queues grow long beyond one half. Flat, every worker exchanges over the network: A = p/(τ s). With a
center in every machine's memory the machines do, once for T exchanges of each of their workers: A = n/(T τ s).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from easgd.errors import refuse
from easgd.theory.checks import count, numbers
from easgd.theory.waiting import BUSY, communication_share, period_for

CLOSE = 1.1  # more shards are not worth it for a period that is less than this much shorter


@dataclass(frozen=True)
class Service:
    """The work of a center for one exchange: `request` seconds, and 1/`rate` for every byte of message and answer."""

    request: float
    rate: float

    def seconds(self, moved: float) -> float:
        """Return the time for so many bytes, of both directions together."""
        return self.request + moved / self.rate


# Processor time, measured by `easgd bench scale` on one core of a virtual machine (docs/scale.md).
SHARD = Service(request=0.15e-3, rate=2.9e9)
MEMORY = Service(request=0.06e-3, rate=8.3e9)


@dataclass(frozen=True)
class Cluster:
    """What is given: a model, machines and their links.

    Args:
        workers: p, of all machines together.
        machines: n.
        parameters: of the model.
        step_time: s, seconds of one local step.
        link: B, bytes per second of a machine's link in each direction.
        latency: seconds that a message is under way, besides its bytes.
        bytes_per_parameter: on the network: 4 for float32, 1 for int8.
        shard: the work of a shard.
        memory: the work of a center in shared memory.
    """

    workers: int
    machines: int
    parameters: int
    step_time: float
    link: float
    latency: float = 0.0
    bytes_per_parameter: float = 4.0
    shard: Service = SHARD
    memory: Service = MEMORY

    def __post_init__(self) -> None:
        if count("machines", self.machines) > count("workers", self.workers):
            raise refuse("machines", self.machines, f"each has a worker, and there are {self.workers}", "give fewer")
        count("parameters", self.parameters)
        for name in ("step_time", "link", "bytes_per_parameter"):
            numbers(name, getattr(self, name), 0, open_low=True)
        numbers("latency", self.latency, 0)

    @property
    def message(self) -> float:
        """M, bytes of a message."""
        return self.bytes_per_parameter * self.parameters

    def exchange_time(self, shards: int) -> float:
        """Seconds of one exchange over the network when nobody else is there."""
        return 2 * (self.latency + self.message / self.link) + self.shard.seconds(2 * self.message / shards)

    def processor_time(self, shards: int) -> float:
        """Seconds for which one exchange occupies the processor of a shard."""
        return self.shard.seconds(2 * self.message / shards)

    def link_time(self, shards: int) -> float:
        """Seconds for which one exchange occupies the link of a machine that has a shard, and its share of workers."""
        return self.message * (1 / shards + 1 / self.machines) / self.link if self.machines > 1 else 0.0

    def memory_time(self) -> float:
        """Seconds of one exchange with the center of a machine, float32."""
        return self.memory.seconds(8.0 * self.parameters)


@dataclass(frozen=True)
class Scale:
    """One way to run on a cluster, and what follows from it."""

    cluster: Cluster
    levels: bool  # every machine has a center of its own
    shards: int  # S
    period: int  # τ
    upward: int  # T, exchanges of a worker between two of its machine; 1 without levels
    delay: int = 1  # k, steps behind which a worker's exchange hides

    @property
    def exchanges(self) -> float:
        """Exchanges a second at the run's center."""
        c = self.cluster
        senders = c.machines if self.levels else c.workers
        return senders / (self.upward * self.period * c.step_time)

    @property
    def bottleneck(self) -> str:
        """What saturates first: "processor" of a shard or its "link"."""
        c = self.cluster
        return "processor" if c.processor_time(self.shards) >= c.link_time(self.shards) else "link"

    @property
    def busy(self) -> float:
        """The share of its time for which the bottleneck is occupied; the center is saturated at 1."""
        c = self.cluster
        return self.exchanges * max(c.processor_time(self.shards), c.link_time(self.shards))

    @property
    def waiting(self) -> float:
        """The share of a worker's time that it waits: for its own exchange, or for a saturated center."""
        c = self.cluster
        X = c.memory_time() if self.levels else c.exchange_time(self.shards)
        alone = communication_share(self.period, c.step_time, X, self.delay).hidden
        # A machine's center does not wait for the run's: a saturated one only makes T longer.
        return alone if self.levels else max(alone, 1 - 1 / max(1.0, self.busy))

    @property
    def speed(self) -> float:
        """Local steps a second, of all workers together."""
        return self.cluster.workers / self.cluster.step_time * (1 - self.waiting)

    @property
    def network_bytes(self) -> float:
        """Bytes a second that a machine without a shard sends and receives: no more than what a center can serve."""
        return 2 * self.cluster.message * self.exchanges / max(1.0, self.busy) / self.cluster.machines

    @property
    def most_workers(self) -> int:
        """The workers at which the center saturates with these settings, on more machines of the same kind.

        >>> run = Scale(Cluster(8, 8, 1_000_000, 0.1, 1.25e8, shard=Service(0.0, 8e8)), False, 1, 1, 1)
        >>> run.busy, run.most_workers  # a shard bears 100 exchanges a second, its link 27.8; 80 are asked for
        (2.88, 2)
        """
        return math.floor(self.cluster.workers / self.busy)


def scale(
    cluster: Cluster, *, levels: bool, shards: int | None = None, period: int | None = None, delay: int = 1
) -> Scale:
    """Return the shards and the period at which nobody waits; what is given is kept.

    The period is the shortest at which a worker waits for less than 1 % of its time and the busiest shard is occupied
    for at most half of its own. The shards are as few as lead to about the shortest period that any number leads to; if
    the period is given, as few as keep them from being busier than that.

    >>> cluster = Cluster(64, 8, 9_000_000, step_time=0.1, link=1.25e8)
    >>> run = scale(cluster, levels=False, delay=6)
    >>> run.shards, run.period, run.bottleneck
    (8, 93, 'link')
    >>> run = scale(cluster, levels=True)
    >>> run.shards, run.period, run.upward, round(run.busy, 2)
    (8, 2, 6, 0.48)
    """
    most = cluster.machines
    choices = [s for k in range(most.bit_length()) if (s := 1 << k) <= most] if shards is None else [shards]
    found = [_at(cluster, levels, count("shards", s), period, count("delay", delay)) for s in choices]
    if period is not None and not levels:
        return next((one for one in found if one.busy <= BUSY), min(found, key=lambda one: one.busy))
    best = min(one.period * one.upward for one in found)
    return next(one for one in found if one.period * one.upward <= CLOSE * best)


def _at(c: Cluster, levels: bool, shards: int, period: int | None, delay: int) -> Scale:
    X, occupied = c.exchange_time(shards), max(c.processor_time(shards), c.link_time(shards))
    if not levels:
        tau = period or period_for(c.step_time, X, workers=c.workers, center_time=occupied, delay=delay)
        return Scale(c, levels, shards, tau, 1, delay)
    inside, each = c.memory_time(), math.ceil(c.workers / c.machines)
    tau = period or period_for(c.step_time, inside, workers=each, center_time=inside, delay=delay)
    # A machine's exchange ends before its next begins, and all machines together leave the center half of its time.
    upward = math.ceil(max(X, c.machines * occupied / BUSY) / (tau * c.step_time) * (1 - 1e-9))
    return Scale(c, levels, shards, tau, max(1, upward), delay)
