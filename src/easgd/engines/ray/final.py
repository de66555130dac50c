"""The centers that a run on a cluster leaves, by model: one that is sharded over a group's ranks is put together."""

from __future__ import annotations

from torch import Tensor

from easgd.center.layout import Layout, assembled
from easgd.engines.ray.supervisor import Supervisor
from easgd.groups.names import by_model


def final_centers(supervisor: Supervisor) -> dict[str, dict[str, Tensor]]:
    """Return the final center of every model, as far as all its parts are there."""
    known = supervisor.opened()
    found = {name: supervisor.final(name) for name in known}
    out: dict[str, dict[str, Tensor]] = {}
    for model, names in by_model(known).items():
        parts = [(Layout.from_json(known[name]["header"]["layout"]), found[name]) for name in names]
        values = [(layout, value) for layout, value in parts if value is not None]
        if len(values) == len(names):
            whole = assembled(values)
            rest = {key: tensor for layout, value in values for key, tensor in value.items() if key not in layout.names}
            tied = {alias: whole[name].clone() for name_ in names for alias, name in known[name_]["aliases"].items()}
            out[model] = {**rest, **tied, **whole}
    return out
