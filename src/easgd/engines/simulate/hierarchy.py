"""Machines with a center each, on the virtual clock (`easgd.center.levels` has the rule).

A worker's exchange stays inside its machine, with the costs of `Machines`; what a machine exchanges with the run's
center has those of the `CostModel`. A machine whose last worker has died is lost with its memory: whoever joins there
next starts it anew from the run's center.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from easgd.center.guard import check_factor
from easgd.center.levels import check_levels, machine_of, upward_due, upward_rate
from easgd.center.whole import Center
from easgd.engines.simulate.compressed_link import CompressedLink, links_of
from easgd.engines.simulate.cost import CostModel
from easgd.engines.simulate.exchange_cost import ExchangeCost
from easgd.errors import refuse
from easgd.records import Event

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation


@dataclass(frozen=True)
class Machines:
    """Workers of one machine share a center in its memory; worker r is on machine r mod `count`.

    Args:
        count: how many machines there are.
        period: T, a machine exchanges with the run's center when each of its workers has exchanged T times.
        latency: seconds that a worker's message is under way to its machine's center.
        bandwidth: bytes per second of that way, in each direction.
        service: seconds that a machine's center works on one exchange; its workers queue up for it.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1), easgd.EASGD(period=1), lr=0.5, workers=4,
        ...                      steps=80, schedule="async", machines=easgd.Machines(count=2))
        >>> bool(run.center[-1] < 0.1)
        True
    """

    count: int
    period: int = 1
    latency: float = 0.0
    bandwidth: float = math.inf
    service: float = 0.0

    def __post_init__(self) -> None:
        for name in ("count", "period"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise refuse(f"machines' {name}", value, "it is a whole number, 1 or more", f"write {name}=1")
        self.inside(CostModel())

    def inside(self, cost: CostModel) -> CostModel:
        """Return what an exchange inside a machine costs."""
        return replace(
            cost, latency=self.latency, bandwidth=self.bandwidth, service=self.service, request=0.0, shards=1,
            link_sharing=0.0, protocol="exchange",
        )  # fmt: skip


@dataclass(slots=True)
class Machine:
    """One machine's center, and where it stands with the run's.

    Attributes:
        living: its workers that are alive now.
        launched: its workers at the start.
        incarnation: how often it was lost before.
        since: updates of its center since it last began an exchange.
        exchanges: how many it has begun.
        busy: whether one is under way.
    """

    center: Center
    living: int
    launched: int
    links: list[CompressedLink] | None
    incarnation: int = 0
    since: int = 0
    exchanges: int = 0
    busy: bool = False


class Hierarchy:
    """The machines of a simulation."""

    def __init__(self, sim: Simulation, settings: Machines, guard: float | None) -> None:
        check_levels(sim.method)
        if sim.schedule_name != "async":
            raise refuse("schedule", sim.schedule_name, "machines exchange as they come", 'write schedule="async"')
        if settings.count > sim.launched:
            why = f"every machine has a worker, and there are {sim.launched}"
            raise refuse("machines' count", settings.count, why, f"write count={sim.launched} or fewer")
        self.sim, self.settings = sim, settings
        # The time average is the run's: a machine's center keeps none.
        plain, x = replace(sim.method, average=None), sim.center.x
        self.machines = [
            Machine(
                Center(plain, plain.center_slots(x), fused=False, guard=check_factor(guard)),
                living=(n := len(range(m, sim.launched, settings.count))),
                launched=n,
                links=links_of(sim.compression, sim.center),
            )
            for m in range(settings.count)
        ]
        for level in (settings.count, min(machine.launched for machine in self.machines)):
            sim.method.check(level)
        self.cost = ExchangeCost(sim.cost, sim.method, sim.center, sim.compression)

    def of(self, rank: int) -> Machine:
        """The machine of a worker."""
        return self.machines[machine_of(rank, self.settings.count)]

    @property
    def living(self) -> int:
        """How many machines have a worker that is alive."""
        return max(1, sum(machine.living > 0 for machine in self.machines))

    def scale(self, m: int) -> float:
        """The moving rate between machine m and the run's center."""
        return upward_rate(self.sim.method, self.machines[m].living, self.sim.alive)

    # an exchange of a machine with the run's center ---------------------------------------------------------------

    def begins(self, m: int) -> Tensor | None:
        """Return what machine m sends to the run's center now; None if nothing is due."""
        machine = self.machines[m]
        if machine.busy or not machine.living or not upward_due(machine.since, machine.living, self.settings.period):
            return None
        machine.busy, machine.since = True, 0
        machine.exchanges += 1
        return machine.center.x.clone()

    def serve(self, m: int, message: Tensor) -> Tensor | None:
        """Let the run's center answer a machine; None if it was refused."""
        sim, machine, center = self.sim, self.machines[m], self.sim.center.parts[0]
        distance, moved = float(torch.dist(message, center.x)), 2 * self.cost.message_bytes[0]
        if machine.links is None:
            answer = center.exchange(message, self.scale(m), rank=m)
        else:
            answer = machine.links[0].exchange(center, message, self.scale(m), m)
        if answer is None:
            sim.on_record(Event("refused", sim.time, None, f"machine {m}: {center.refusal}"))
        else:
            detail = f"machine {m}, exchange {machine.exchanges}: distance {distance:.6g}, {moved} bytes"
            sim.on_record(Event("machine", sim.time, None, detail))
        return answer

    def receive(self, m: int, answer: Tensor | None) -> None:
        """Let the machine's center take its side of the spring: x_m −= D."""
        machine = self.machines[m]
        machine.busy = False
        if answer is not None:
            machine.center.x.sub_(answer)

    # faults and saving ----------------------------------------------------------------------------------------

    def recount(self, rank: int) -> None:
        """Follow a death or a join: a machine without workers is lost, the first that joins it starts it anew."""
        m = machine_of(rank, self.settings.count)
        machine, before = self.machines[m], self.machines[m].living
        machine.living = sum(worker.alive for worker in self.sim.workers[m :: self.settings.count])
        machine.center.forget(rank)
        if machine.living and not before:
            machine.center.x.copy_(self.sim.center.x)
            machine.links = links_of(self.sim.compression, self.sim.center)
            machine.since, machine.busy = 0, False
        elif before and not machine.living:
            machine.incarnation += 1
            self.sim.center.forget(m)

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything of the machines that decides the future of the run."""
        return [
            {
                **{name: getattr(machine, name) for name in _FIELDS},
                "center": machine.center.state_dict(),
                "guard": [torch.tensor(g.table.tolist(), dtype=torch.float64) for g in machine.center.guards],
                "links": None if machine.links is None else [link.state_dict() for link in machine.links],
            }
            for machine in self.machines
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Take back what `state_dict` gave."""
        for machine, saved in zip(self.machines, state, strict=True):
            for name in _FIELDS:
                setattr(machine, name, saved[name])
            machine.center.load_state_dict(saved["center"])
            for guard, table in zip(machine.center.guards, saved["guard"], strict=True):
                guard.load(table.tolist())
            for link, one in zip(machine.links or [], saved["links"] or [], strict=True):
                link.load_state_dict(one)


_FIELDS = ("living", "incarnation", "since", "exchanges", "busy")
