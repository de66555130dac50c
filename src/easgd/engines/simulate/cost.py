"""What things cost on the virtual clock.

One record of seconds and bytes per second. Randomness enters only through `jitter`, drawn from each worker's own
seeded generator. The two presets are calibrated on the paper's table of the wallclock time; `docs/simulator.md` shows
the table beside what they give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from easgd.errors import refuse, unknown
from easgd.theory.scale import Cluster


@dataclass(frozen=True)
class CostModel:
    """Seconds and bytes of one step and one exchange.

    Args:
        compute: seconds of one gradient and local step, for a worker of speed 1.
        jitter: relative standard deviation of that time (log-normal, mean kept).
        speeds: relative speed of each worker; those not listed have speed 1.
        data: seconds a step waits for its batch.
        data_sharing: relative growth of `data` with every further worker on the same loaders.
        latency: seconds a message is under way, besides its bytes.
        bandwidth: bytes per second of the link between a worker and the center, in each direction.
        link_sharing: relative growth of the transfer time with every further worker on the same link.
        service: seconds the center works on one exchange of the whole vector; exchanges queue up for it.
        request: seconds it takes for every message besides, whatever its size; `service` grows with the size alone.
        shards: processes that share the center's vector, and its service; each has a queue of its own.
        overlap: whether an exchange that does not wait for its answer hides behind the gradient.
        protocol: "exchange" sends x and is answered with d, one round trip; "pull-push" is the paper's way for the
            elastic methods: the worker waits for x̃ only, and sends d while it goes on.
        message_bytes: bytes of one message, if not those of the vector that is simulated.

    Example:
        >>> import easgd
        >>> slow = easgd.CostModel(compute=0.1, latency=0.02, bandwidth=12.5e6)  # 100 Mbit/s
        >>> round(slow.transfer_seconds(36_000_000, workers=2), 2)
        2.9
    """

    compute: float = 1.0
    jitter: float = 0.1
    speeds: tuple[float, ...] = ()
    data: float = 0.0
    data_sharing: float = 0.0
    latency: float = 0.0
    bandwidth: float = math.inf
    link_sharing: float = 0.0
    service: float = 0.0
    request: float = 0.0
    shards: int = 1
    overlap: bool = True
    protocol: Literal["exchange", "pull-push"] = "exchange"
    message_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("jitter", "data", "data_sharing", "latency", "link_sharing", "service", "request"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise refuse(name, value, "a cost is finite and not negative", f"write {name}=0.0")
        for name, value in (
            ("compute", self.compute),
            ("bandwidth", self.bandwidth),
            *(("speed", s) for s in self.speeds),
        ):
            if not value > 0 or (name != "bandwidth" and value == math.inf):
                raise refuse(name, value, "it must be positive", f"write {name}=1.0")
        if isinstance(self.shards, bool) or not isinstance(self.shards, int) or self.shards < 1:
            raise refuse("shards", self.shards, "the center has at least one", "write shards=1 or more")
        if self.protocol not in ("exchange", "pull-push"):
            raise unknown("protocol", self.protocol, ("exchange", "pull-push"))

    def compute_seconds(self, worker: int, rng: np.random.Generator) -> float:
        """Draw the time of one gradient of this worker."""
        speed = self.speeds[worker] if worker < len(self.speeds) else 1.0
        if not self.jitter:
            return self.compute / speed
        # log-normal with mean 1 and relative deviation `jitter`
        s2 = math.log1p(self.jitter**2)
        return self.compute / speed * math.exp(math.sqrt(s2) * rng.standard_normal() - s2 / 2)

    def data_seconds(self, workers: int) -> float:
        """Time a step waits for its batch when this many workers share the loaders."""
        return self.data * (1 + self.data_sharing * (workers - 1))

    def transfer_seconds(self, size: int, workers: int) -> float:
        """Time of one message of `size` bytes one way."""
        return self.latency + size / self.bandwidth * (1 + self.link_sharing * (workers - 1))

    @staticmethod
    def of_cluster(cluster: Cluster, shards: int = 1, jitter: float = 0.1) -> CostModel:
        """Return what steps and exchanges cost on a cluster: what occupies a shard longest, processor or link, queues.

        Example:
            >>> from easgd.theory import Cluster, Service
            >>> cluster = Cluster(64, 8, 1_000_000, step_time=0.5, link=1e8, shard=Service(request=0.001, rate=1e8))
            >>> model = CostModel.of_cluster(cluster, shards=2)
            >>> model.request, model.service, model.message_bytes
            (0.001, 0.08, 4000000)
        """
        M = cluster.message
        request, service = cluster.shard.request, 2 * M / cluster.shard.rate
        if cluster.link_time(shards) > cluster.processor_time(shards):
            request, service = M / cluster.machines / cluster.link, M / cluster.link
        return CostModel(
            compute=cluster.step_time, jitter=jitter, latency=cluster.latency, bandwidth=cluster.link, request=request,
            service=service, shards=shards, message_bytes=round(M),
        )  # fmt: skip

    @staticmethod
    def preset(name: str) -> CostModel:
        """Return a model by name: "paper-cifar" and "paper-imagenet" are calibrated, "unequal" has four speeds."""
        if name not in PRESETS:
            raise unknown("cost preset", name, PRESETS)
        return PRESETS[name]


# The paper's workers wait for their exchange (overlap=False). See docs/simulator.md for the fit and its misfit.
PRESETS = {
    "paper-cifar": CostModel(
        compute=11.5 / 400,
        jitter=0.05,
        data=3.5e-3,
        data_sharing=0.04,
        latency=1.145e-3,
        bandwidth=1.224e9,
        link_sharing=0.517,
        service=0.35e-3,
        overlap=False,
        message_bytes=4 * 351_946,
    ),
    "paper-imagenet": CostModel(
        compute=1266 / 1024,
        jitter=0.05,
        data=20e-3,
        data_sharing=0.37,
        bandwidth=5.67e9,
        link_sharing=0.314,
        service=2e-3,
        overlap=False,
        protocol="pull-push",
        message_bytes=4 * 61_128_808,
    ),
    # Four machines of 0.58, 0.75, 1.51 and 3.33 s a step, as published notebooks of asynchronous DiLoCo have them, on
    # links of 100 Mbit/s.
    "unequal": CostModel(
        jitter=0.05,
        speeds=(1 / 0.58, 1 / 0.75, 1 / 1.51, 1 / 3.33),
        latency=0.02,
        bandwidth=12.5e6,
    ),
}
