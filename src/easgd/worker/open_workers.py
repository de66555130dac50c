"""The workers of this process: one for each model that the script trains."""

from __future__ import annotations

import itertools
import os
import re
import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from easgd.errors import SettingError, refuse
from easgd.worker.context import RunContext
from easgd.worker.script_checks import check_end

if TYPE_CHECKING:
    from easgd.worker.recorder import Recorder
    from easgd.worker.worker import Worker

OPEN_WORKERS: set[Worker] = set()
"""Those in a run: they must leave it when the script ends."""
_ALONE: weakref.WeakSet[Worker] = weakref.WeakSet()
"""Those without one. They need no farewell, and live as long as the model that they are hooked to."""
_USED: set[tuple[str | None, int, int, str]] = set()
"""The centers that this process has been attached to, with the run, the rank and the incarnation."""
APART: list[str] = []
"""Workers of this process that ended with a refused exchange: a launcher's child makes an exit code of it."""


def center_name(model: nn.Module, optimizer: torch.optim.Optimizer, context: RunContext, name: str | None) -> str:
    """Return the name of the center that a model of this process gets: as asked for, or by the order of `attach`.

    A center is used once: who attaches again after `close` begins another training, at a center where the workers wait
    for each other, instead of meeting those that are still busy with the first.
    """
    here = [worker for worker in (*OPEN_WORKERS, *_ALONE) if worker.context.run == context.run]
    if any(worker.model is model or worker.replica.optimizer is optimizer for worker in here):
        raise SettingError("this model or its optimizer is attached already; close() that worker first")
    me = _place(context)
    taken = {used for *place, used in _USED if tuple(place) == me}
    if name is None:
        names = (context.center if k == 1 else f"{context.center}-{k}" for k in itertools.count(1))
        name = next(free for free in names if free not in taken)
    elif not re.fullmatch(r"[\w.-]{1,64}", name):
        raise refuse("name", name, "it is up to 64 letters, digits, . _ -", 'write name="generator"')
    elif name in taken:
        raise refuse("name", name, "this process has been at that center before", "give another, or none")
    return name


def enter(worker: Worker) -> None:
    """Note a worker that has joined its run, or that trains alone."""
    if worker.context.alone:
        _ALONE.add(worker)
    else:
        OPEN_WORKERS.add(worker)
        _USED.add((*_place(worker.context), worker.context.center))


def leave(worker: Worker) -> None:
    """Forget a worker that is closed."""
    OPEN_WORKERS.discard(worker)
    _ALONE.discard(worker)


def _place(context: RunContext) -> tuple[str | None, int, int]:
    return context.run, context.rank, context.incarnation


def at_center(context: RunContext, name: str) -> RunContext:
    """Return the context of a worker of this center. Further centers of a script record in folders of their own."""
    if name == context.center:
        return context
    out = None if context.out is None else context.out / "centers" / name
    return replace(context, center=name, out=out)


def note_apart(worker: str, refusals: int, recorder: Recorder) -> None:
    """Say that a worker ends apart from the center: what it did since then is in nobody's model."""
    recorder.event("apart", f"its last {refusals} exchanges were refused")
    print(f"easgd: {worker} ends apart from the center: its last {refusals} exchanges were refused", file=sys.stderr)
    APART.append(worker)


def _forget() -> None:
    """In a process that a script has forked: its workers are the parent's, which goes on with them."""
    for worker in list(OPEN_WORKERS):
        worker.abandon()
    OPEN_WORKERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def part_all() -> None:
    """Let every worker of this process that is in a run bring the center what it has done, and leave."""
    for worker in list(OPEN_WORKERS):
        worker.part()


def close_all() -> None:
    """Close every worker of this process that is in a run: a process that lives on does so after a script has ended."""
    for worker in list(OPEN_WORKERS):
        if not isinstance(sys.exception(), Exception):  # a script that failed has said why
            check_end(worker)
        worker.close()
    _USED.clear()
