"""Who takes part in the race: PyTorch's own ways to train on two machines, a process alone, and our methods.

A case of ours is written as on a command line, `easgd/period=50/compression=int8`: a method of the registry, settings
of its constructor, and `compression` of its messages. A method that this version does not have takes no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from easgd.errors import SettingError, unknown
from easgd.methods import Method, registry
from easgd.settings import assignment, literal

ALONE, TORCHFT = "alone", "torchft-diloco"
POST_LOCAL_PERIOD, TORCHFT_PERIOD = 10, 50
RIVALS = {
    "ddp": "DDP",
    "ddp-fp16": "DDP, fp16 hook",
    "ddp-powersgd": "DDP, PowerSGD hook",
    "post-local": f"post-local SGD, τ = {POST_LOCAL_PERIOD}",
    TORCHFT: f"DiLoCo of torchft, τ = {TORCHFT_PERIOD}",
}
"""On a process group: synchronous, so that every link gives them the same numbers."""
OURS = (
    "easgd/period=auto/compression=int8",
    "eamsgd/period=auto/compression=int8",
    "diloco/period=50/compression=int8",
    "localsgd/period=4/compression=int8",
    "localsgd/period=10/compression=int4",
)


@dataclass(frozen=True)
class Case:
    """One contestant; `method` is None for those that are not ours."""

    name: str
    title: str
    method: Method | None = None
    compression: str | None = None

    @property
    def momentum(self) -> float:
        """The momentum of the local SGD: 0 for EASGD, whose local step has none in the paper."""
        if self.method is None:
            return 0.9
        key = type(self.method).key
        return 0.0 if key == "easgd" else 0.9

    @property
    def head(self) -> int:
        """First steps that cost more than the others: two of PowerSGD and post-local SGD reduce whole gradients."""
        return 2 if self.name in ("ddp-powersgd", "post-local") else 0

    @property
    def cycle(self) -> int:
        """Steps after which the work repeats: the period of what averages, one step of DDP."""
        if self.name in (periods := {"post-local": POST_LOCAL_PERIOD, TORCHFT: TORCHFT_PERIOD}):
            return periods[self.name]
        period = 1 if self.method is None else self.method.period
        return period if isinstance(period, int) else 50

    @property
    def least(self) -> int:
        """Steps that show what a step costs: the head and a cycle, two where a cycle is one step."""
        return self.head + max(2, self.cycle)

    def fits(self, sgd: bool) -> bool:
        """Whether the case is another one than its fellows when the local optimizer is not SGD."""
        return sgd or self.method is None or type(self.method).key != "eamsgd"


def case(name: str) -> Case:
    """Return the case with a name."""
    if name == ALONE:
        return Case(name, "one process alone")
    if name in RIVALS:
        return Case(name, RIVALS[name])
    key, *words = name.split("/")
    if key not in registry.names():
        raise unknown("case", key, [ALONE, *RIVALS, *registry.names()])
    settings: dict[str, Any] = {k: literal(v) for k, v in map(assignment, words)}
    compression = settings.pop("compression", None)
    method = registry.get(key)
    if key == "eamsgd":
        settings.setdefault("momentum", 0.9)
    shown = [f"{'τ' if k == 'period' else k} = {v}" for k, v in settings.items() if k != "momentum"]
    title = ", ".join([method.name, *shown, *filter(None, [compression])])
    return Case(name, title, method(**settings), compression)


def all_cases() -> list[Case]:
    """Return every case that this version can run, the rivals first."""
    found = [case(name) for name in (ALONE, *RIVALS) if name != TORCHFT or find_spec("torchft") is not None]
    for name in OURS:
        try:
            found.append(case(name))
        except (SettingError, TypeError):  # a method or a setting of another version
            continue
    return found
