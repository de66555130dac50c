"""Who acts when: the three schedules, over the operations of a `Simulation`.

    round-robin   worker t mod p alone acts at global tick t
    sync          all workers exchange from the same x̃, all step, a barrier ends the round
    async         an event heap: each worker at its own pace

A tick is one worker's step (round-robin, async) or one round of all (sync).
"""

from easgd.engines.simulate.schedules.asynchronous import Asynchronous
from easgd.engines.simulate.schedules.base import Schedule
from easgd.engines.simulate.schedules.round_robin import RoundRobin
from easgd.engines.simulate.schedules.synchronous import Synchronous

SCHEDULES: dict[str, type[Schedule]] = {"round-robin": RoundRobin, "sync": Synchronous, "async": Asynchronous}

__all__ = ["SCHEDULES", "Schedule"]
