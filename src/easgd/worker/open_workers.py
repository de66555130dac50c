"""The workers of this process that are in a run: one for each model that the script trains."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from easgd.errors import SettingError, refuse
from easgd.worker.context import RunContext

if TYPE_CHECKING:
    from easgd.worker.worker import Worker

OPEN_WORKERS: set[Worker] = set()


def center_name(model: nn.Module, optimizer: torch.optim.Optimizer, context: RunContext, name: str | None) -> str:
    """Return the name of the center that a model of this process gets: as asked for, or by the order of `attach`."""
    here = [worker for worker in OPEN_WORKERS if worker.context.run == context.run]
    if any(worker.model is model or worker.replica.optimizer is optimizer for worker in here):
        raise SettingError("this model or its optimizer is attached already; close() that worker first")
    taken = {worker.context.center for worker in here}
    if name is None:
        names = (context.center if k == 1 else f"{context.center}-{k}" for k in itertools.count(1))
        return next(free for free in names if free not in taken)
    if not re.fullmatch(r"[\w.-]{1,64}", name) or name in taken:
        raise refuse("name", name, "it is up to 64 letters, digits, . _ - and no other's", 'write name="generator"')
    return name


def at_center(context: RunContext, name: str) -> RunContext:
    """Return the context of a worker of this center. Further centers of a script record in folders of their own."""
    if name == context.center:
        return context
    out = None if context.out is None else context.out / "centers" / name
    return replace(context, center=name, out=out)


def close_all() -> None:
    """Close every worker of this process that is in a run: a process that lives on does so after a script has ended."""
    for worker in list(OPEN_WORKERS):
        worker.close()
