"""Faults are data: a plan is a table of (who, when, what), the same for every engine.

death    the worker stops for good; a message it had sent still arrives
join     a new incarnation starts from the center (of a dead worker, or of a rank beyond the first p)
pause    the worker stands still for `amount` seconds, then goes on
slow     its gradients take `amount` times as long from then on
restart  it dies, and a new incarnation starts `amount` seconds later

The simulator lets them happen on the virtual clock. On real processes a death is SIGKILL, a pause SIGSTOP and SIGCONT;
seconds count from the moment at which training began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from easgd.errors import refuse, unknown
from easgd.settings import fields_of, make, read_settings

KINDS = ("death", "join", "pause", "slow", "restart")


@dataclass(frozen=True)
class Fault:
    """At second `time`, `what` happens to `worker`.

    Example:
        >>> import torch, easgd, easgd.records
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1), easgd.EASGD(period=1), lr=0.5, workers=2,
        ...                      steps=6, schedule="async", faults=[easgd.Fault(worker=1, time=1.5, what="death")])
        >>> [record.event for record in run.records if isinstance(record, easgd.records.Event) and record.worker == 1]
        ['death']
    """

    worker: int
    time: float
    what: Literal["death", "join", "pause", "slow", "restart"]
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise unknown("fault", self.what, KINDS)
        if self.worker < 0:
            raise refuse("worker", self.worker, "a fault strikes a rank ≥ 0", "write worker=0")
        if not self.time >= 0:
            raise refuse("time", self.time, "a fault happens at a second ≥ 0", "write time=0.0")
        if self.what in ("pause", "slow") and not self.amount > 0:
            unit = "seconds" if self.what == "pause" else "times the compute time"
            raise refuse("amount", self.amount, f"a {self.what} is given in {unit}, positive", "write amount=10.0")
        if not self.amount >= 0:
            raise refuse("amount", self.amount, "it is not negative", "write amount=10.0")


def ranks(workers: int, faults: Sequence[Fault]) -> int:
    """How many ranks a run can have: those launched, and those that join."""
    joining = [f.worker + 1 for f in faults if f.what == "join"]
    for fault in faults:
        if fault.worker >= max([workers, *joining]):
            raise refuse(
                "worker", fault.worker, f"no such worker among {workers}, and none of that rank joins", "write a join"
            )
    return max([workers, *joining])


def in_order(faults: Sequence[Fault]) -> list[Fault]:
    """The faults by time; a restart is a death and a join."""
    single = [f for f in faults if f.what != "restart"]
    for fault in (f for f in faults if f.what == "restart"):
        single += [
            Fault(fault.worker, fault.time, "death"), Fault(fault.worker, fault.time + fault.amount, "join")
        ]  # fmt: skip
    return sorted(single, key=lambda f: f.time)


def check_plan(faults: Sequence[Fault], workers: int, engine: str, can: Collection[str] = KINDS) -> None:
    """Refuse a plan that a run of so many workers on this engine cannot carry out."""
    total = ranks(workers, faults)
    for fault in faults:
        if fault.what not in can:
            why = f"the engine {engine} cannot do that to a worker"
            raise refuse("fault", fault.what, why, f"it does {', '.join(sorted(can))}; or write another engine")
    first = {f.worker: f.time for f in reversed(in_order(faults)) if f.what == "join"}
    for rank in range(workers, total):
        if rank not in first or (rank > workers and first[rank] < first[rank - 1]):
            raise refuse("worker", rank, "new workers join in the order of their ranks", "write a join for each rank")


def load_plan(path: Path) -> list[Fault]:
    """Read a plan: a TOML or JSON file with a table `[[fault]]` for each."""
    data = read_settings(path, "faults", "give a TOML file of tables [[fault]]")
    return plan_of(data, str(path))


def plan_of(data: Mapping[str, Any], where: str) -> list[Fault]:
    """Build a plan from plain data; what is wrong is refused with the fault's place in it."""
    tables = data.get("fault")
    if set(data) != {"fault"} or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise refuse("faults", where, "it must hold tables [[fault]] and nothing else", "see examples/faults.toml")
    return [_fault(table, f"fault {k + 1} of {where}") for k, table in enumerate(tables)]


def _fault(table: Mapping[str, Any], where: str) -> Fault:
    known = fields_of(Fault)
    for name in ("worker", "time", "what"):
        if name not in table:
            raise refuse(name, "nothing", f"{where} has none", f"it needs {', '.join(list(known)[:3])}")
    return make(Fault, {n: known[n].convert(v) if n in known else v for n, v in table.items()}, where)


def as_data(faults: Sequence[Fault]) -> dict[str, Any]:
    """Return a plan as plain data, which `plan_of` takes back."""
    return {"fault": [asdict(fault) for fault in faults]}
