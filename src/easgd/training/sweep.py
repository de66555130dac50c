"""A comparison as data: settings with lists in them, multiplied out to one run per combination.

    data = "digits"                 # settings of every run; any of them may be a list
    seed = [0, 1, 2]

    [[runs]]                        # a group of runs: what it says goes before what stands above
    method = "msgd"
    lr = [0.02, 0.05, 0.1]

    [[runs]]
    method = ["easgd", "eamsgd"]
    workers = [4, 8]

A setting of all runs that a method does not have (the period of MSGD, the momentum of EASGD) is left out for it. What
a group says of its one method itself must fit it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from easgd.errors import SettingError, refuse, unknown
from easgd.methods import registry
from easgd.settings import read_settings
from easgd.training.config import FIELDS, METHOD_SETTINGS, Config

OWN = ("levels", "baseline", "jobs", "runs")
"""Keys of a comparison that are no settings of a run."""
OF_METHOD = "settings."
"""How the names of the table `settings` begin while they are multiplied out."""
MOST = 10_000


@dataclass(frozen=True)
class Sweep:
    """The runs of a comparison, and how it is reported."""

    configs: list[Config]
    levels: list[float] | None = None
    baseline: str | None = None
    jobs: int | None = None
    source: dict[str, Any] = field(default_factory=dict)


def load_sweep(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Read a comparison from a TOML file; `overrides` go before what it says."""
    return make_sweep(read_settings(Path(path), "file", "give a TOML file of settings"), overrides, where=str(path))


def make_sweep(
    data: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, where: str = "the comparison"
) -> Sweep:
    """Multiply settings out; an unknown key is refused with the nearest name."""
    groups = data.get("runs", [{}])
    if not isinstance(groups, list) or not groups or not all(isinstance(group, Mapping) for group in groups):
        raise SettingError(f"runs in {where}: it must be a list of tables; write [[runs]] before each group")
    common = _checked({k: v for k, v in data.items() if k not in OWN}, where, (*FIELDS, *OWN))
    forced = _checked(overrides or {}, "the options", FIELDS)
    configs: dict[Config, None] = {}
    for group in groups:
        own = _checked(group, f"[[runs]] of {where}", FIELDS)
        for config in _multiplied({**common, **own, **forced}, own):
            configs[config] = None
            if len(configs) > MOST:
                raise refuse("runs", f"more than {MOST}", "that is no comparison any more", "shorten the lists")
    levels, baseline, jobs = data.get("levels"), data.get("baseline"), data.get("jobs")
    if levels is not None:
        levels = check_levels(levels if isinstance(levels, list) else [levels])
    check_baseline(baseline, configs)
    return Sweep(list(configs), levels, baseline, check_jobs(jobs), dict(data))


def check_baseline(baseline: Any, configs: Collection[Config]) -> None:
    """Refuse a name that none of the runs has."""
    if baseline is None:
        return
    if not isinstance(baseline, str):
        raise refuse("baseline", baseline, "it is the name of a method", 'write baseline = "msgd"')
    methods = {name for config in configs for name in (config.method, config.method_class.key)}
    labels = {config.label.casefold() for config in configs}
    # A label of the report may say more: what tells two of the same name apart.
    if baseline.casefold() not in methods and not baseline.casefold().startswith(tuple(labels)):
        raise unknown("baseline", baseline, methods)


def check_levels(levels: Sequence[Any]) -> list[float]:
    """Return test errors from the easiest to the hardest, each once; refuse what is no share of errors."""
    for level in levels:
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise refuse("levels", level, "a test error lies between 0 and 1", "write 0.21 for 21 %")
    return sorted({float(level) for level in levels}, reverse=True)


def check_jobs(jobs: Any) -> int | None:
    """Return a number of runs at once, or None for the default."""
    if jobs is None:
        return None
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise refuse("jobs", jobs, "at least one run must go on", "write jobs = 2")
    return jobs


def _checked(settings: Mapping[str, Any], where: str, known: Any) -> dict[str, list[Any]]:
    """Return every setting as a list of values of its type."""
    result, of_method = {}, settings.get("settings", {})
    if not isinstance(of_method, Mapping):
        raise refuse("settings", of_method, "it must be a table", "write [settings] and a line for each")
    plain = {str(name).replace("-", "_"): value for name, value in settings.items() if name != "settings"}
    for name, given in {**plain, **{f"{OF_METHOD}{name}": value for name, value in of_method.items()}}.items():
        if name not in FIELDS and not name.startswith(OF_METHOD):
            raise unknown(f"key in {where}", name, known)
        values = list(given) if isinstance(given, list | tuple) else [given]
        if not values:
            raise refuse(name, "[]", "a list needs at least one value", f"leave {name} out for its default")
        result[name] = values if name.startswith(OF_METHOD) else [FIELDS[name].convert(value) for value in values]
    return result


def _multiplied(settings: dict[str, list[Any]], own: Mapping[str, Any]) -> Iterator[Config]:
    """Yield one configuration per combination, the last setting changing fastest."""
    methods = settings.pop("method", ["eamsgd"])
    for method in methods:
        meant = set(own) if len(methods) == 1 and "method" in own else set()
        fitting = {name: v for name, v in settings.items() if name in meant or _has(method, name)}
        for values in itertools.product(*fitting.values()):
            chosen = dict(zip(fitting, values, strict=True))
            of_method = {n.removeprefix(OF_METHOD): chosen.pop(n) for n in fitting if n.startswith(OF_METHOD)}
            yield Config(method=method, settings=tuple(sorted(of_method.items())), **chosen).resolved()


def _has(method: str, name: str) -> bool:
    """Whether a setting means something to a method."""
    if name not in ("workers", *METHOD_SETTINGS) and not name.startswith(OF_METHOD):
        return True
    return registry.get(method).takes(name.removeprefix(OF_METHOD))
