"""Faults are data: a table of (who, when, what), injected on the virtual clock.

death    the worker stops for good; a message it had sent still arrives
join     a new incarnation starts from the center (of a dead worker, or of a rank beyond the first p)
pause    the worker stands still for `amount` seconds, then goes on
slow     its gradients take `amount` times as long from then on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from easgd.errors import refuse, unknown

KINDS = ("death", "join", "pause", "slow")


@dataclass(frozen=True)
class Fault:
    """At virtual second `time`, `what` happens to `worker`.

    Example:
        >>> import torch, easgd, easgd.records
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1), easgd.EASGD(period=1), lr=0.5, workers=2,
        ...                      steps=6, schedule="async", faults=[easgd.Fault(worker=1, time=1.5, what="death")])
        >>> [record.event for record in run.records if isinstance(record, easgd.records.Event) and record.worker == 1]
        ['death']
    """

    worker: int
    time: float
    what: Literal["death", "join", "pause", "slow"]
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise unknown("fault", self.what, KINDS)
        if self.worker < 0:
            raise refuse("worker", self.worker, "a fault strikes a rank ≥ 0", "write worker=0")
        if not self.time >= 0:
            raise refuse("time", self.time, "a fault happens at a virtual second ≥ 0", "write time=0.0")
        if self.what in ("pause", "slow") and not self.amount > 0:
            unit = "seconds" if self.what == "pause" else "times the compute time"
            raise refuse("amount", self.amount, f"a {self.what} is given in {unit}, positive", "write amount=10.0")


def ranks(workers: int, faults: Sequence[Fault]) -> int:
    """How many ranks a run can have: those launched, and those that join."""
    joining = [f.worker + 1 for f in faults if f.what == "join"]
    for fault in faults:
        if fault.worker >= max([workers, *joining]):
            raise refuse(
                "worker", fault.worker, f"no such worker among {workers}, and none of that rank joins", "write a join"
            )
    return max([workers, *joining])
