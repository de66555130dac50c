"""What must hold at the end of a scenario and in its quiet moments; `witness` checks what must hold at all times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from easgd.engines.ray.membership import Membership

if TYPE_CHECKING:
    from chaos.simulation import Simulation

CENTER = "center"


def agreement(simulation: Simulation) -> list[str]:
    """All shards know the coordinator's newest announcement, and it is true."""
    coordinator = simulation.cluster.actors["coordinator"].object
    if coordinator is None or CENTER not in coordinator.memberships:
        return []
    membership: Membership = coordinator.memberships[CENTER]
    members, wrong = membership.members(), []
    if any(launcher.backend is not None and launcher.backend._unreported for launcher in simulation.launchers):
        return []  # the last worker died while the coordinator was away, and the launcher ends the run
    there = sorted(w.rank for w in simulation.workers.living() if w.state in ("joined", "quiet"))
    if members != there:
        wrong.append(f"the coordinator counts the workers {members}; in the run are {there}")
    if not membership.opened or not membership.serial:  # nobody has ever joined, so there was nothing to tell
        return wrong
    for k in range(len(membership.bounds)):
        actor = simulation.cluster.actors[f"shard-{k}"].object
        shard = None if actor is None else actor.shards.get(CENTER)
        if shard is None:
            if not simulation.launchers[0].closing:  # then, nobody restores it; what was saved last counts
                wrong.append(f"shard {k} has no value")
            continue
        if shard.serial != membership.serial:
            wrong.append(f"shard {k} knows announcement {shard.serial}, the newest is {membership.serial}")
        if sorted(shard.members) != members:
            wrong.append(f"shard {k} counts the workers {sorted(shard.members)}, the coordinator {members}")
        # Of a worker that has left first, shards need not hear that its process has ended too.
        if any(membership.dead.get(rank, -1) < last for rank, last in shard.dead.items()):
            wrong.append(f"shard {k} knows the dead {shard.dead}, the coordinator {membership.dead}")
    return wrong


def accounts(simulation: Simulation) -> list[str]:
    """What the center took is what the workers gave: Σd of each is the same on both sides, and x̃ has moved by Σd.

    Of shards that never went back to a checkpoint, and workers that came to their end with every exchange answered.
    """
    wrong: list[str] = []
    if not simulation.scenario.method.is_elastic or simulation.scenario.schedule == "sync":
        return wrong
    actors = [simulation.cluster.actors.get(f"shard-{k}") for k in range(simulation.scenario.shards)]
    at = 0
    for k, actor in enumerate(actors):
        shard = None if actor is None or actor.object is None else actor.object.shards.get(CENTER)
        if shard is None:
            return wrong
        stretch = slice(at, at := at + shard.size)
        if shard.epoch:
            continue
        for worker in simulation.workers.all:
            if worker.killed or worker.half_done or worker.received is None:
                continue
            mine, its = worker.received[stretch], shard.changes.get((worker.rank, worker.incarnation))
            apart = float((mine - (torch.zeros_like(mine) if its is None else its)).abs().max())
            if apart > 1e-4:
                wrong.append(f"shard {k}: what {worker.name} subtracted is {apart:.3g} from what the center added")
        moved = shard.center.x.double() - shard.start
        total = sum(shard.changes.values(), torch.zeros(shard.size, dtype=torch.float64))
        if float((moved - total).abs().max()) > 1e-3:
            wrong.append(f"shard {k}: the center has moved by something else than its exchanges")
    return wrong
