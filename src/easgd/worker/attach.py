"""`easgd.attach(model, optimizer, method)`: the one line that makes a training script a worker.

It checks what it is given and finds the worker's place; `easgd.worker.worker` is what it returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from easgd.center.guard import check_factor
from easgd.compress import Codec
from easgd.errors import refuse, unknown
from easgd.machine import follow_thread_setting
from easgd.methods import Method
from easgd.worker import seeding
from easgd.worker.batch_order import watch_loaders
from easgd.worker.context import RunContext
from easgd.worker.exchange import Overlap, Policy
from easgd.worker.open_workers import at_center, center_name
from easgd.worker.process_group import in_process_group
from easgd.worker.tensors import unwrapped, with_momentum_of
from easgd.worker.worker import Buffers, Worker


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Method,
    *,
    buffers: Buffers = "average",
    nonfinite: Policy = "skip",
    overlap: Overlap = "auto",
    deadline: float = 600.0,
    seed: int = 0,
    curvature: float | None = None,
    saved: dict[str, Any] | None = None,
    compression: str | None = None,
    patience: int = 10,
    name: str | None = None,
    reseed: bool = True,
    include_frozen: bool = False,
    process_group: Any = None,
    guard: float | None = None,
) -> Worker:
    """Make this process a worker of its run, or leave it as it is when there is none.

    Args:
        model: any `nn.Module`; its trainable parameters are tied to the center.
        optimizer: any `torch.optim.Optimizer` over them.
        method: for instance `easgd.EASGD(period=10)`.
        buffers: floating-point buffers such as BatchNorm's statistics: "average" exchanges them with the parameters,
            "local" leaves each worker its own, "recalibrate" measures them anew at the center (`Worker.center`).
        nonfinite: what becomes of a worker whose message the center refuses, because it is not finite or has diverged
            (see `guard`): "skip" its exchanges, "reset" it from the center, or "raise".
        overlap: whether a background thread hides the exchange behind forward and backward; "auto" rather moves x and
            x̃ in place where it can and the workers leave no core idle. The numbers do not depend on it.
        deadline: seconds to wait for a turn, a synchronous round or a rank of a process group before a named error.
        seed: of the order in which `shard` reads the data.
        curvature: the largest curvature of the loss, if known (`easgd.theory.largest_curvature`): settings that are
            unstable there are warned of at the start. Without it, only what is unstable at any curvature is.
        saved: a center to go on from, {"slots": …, "version": …}, instead of the first worker's parameters.
        compression: of what this worker sends over a network, "bf16", "int8", "int4", "int2" or "topk"; None sends
            float32. Workers may differ. In shared memory there is nothing to compress. The launcher's `--compression`
            stands where this is None.
        patience: exchanges in a row that a center on a cluster may leave unanswered, while the worker trains on alone,
            before `CenterLostError`; the worker's weights are then in the run's folder.
        name: of the center. A script that trains several models (a GAN) attaches each with its optimizer and has one
            center for each; without names they are told apart by the order in which they are attached.
        reseed: whether the generators of torch, numpy and `random`, the global ones and the script's own, go on
            differently on every worker, and a `DataLoader` that does not shuffle begins at another place: so that a
            script that knows nothing of ranks draws other batches on each.
        include_frozen: whether parameters that are frozen now are tied to the center too. Needed where a script
            unfreezes them later; else their bytes are saved.
        process_group: of torch.distributed. Its ranks are the workers of a synchronous method, without `easgd launch`;
            None takes all ranks of a script that torchrun has started.
        guard: how many times the workers' usual distance from the center a message may have before it is refused; 0
            for any. None is the launcher's `--guard`, else 30.

    Returns:
        The `Worker`.

    Example:
        >>> import torch, easgd
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> worker = easgd.attach(model, optimizer, easgd.EASGD(period=10))  # nothing else changes
        >>> for _ in range(20):
        ...     model(torch.ones(4, 1)).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> worker.clock
        20
        >>> worker.close()
    """
    if not isinstance(model, nn.Module):
        raise refuse(
            "model", type(model).__name__, "it must be an nn.Module", "write easgd.attach(model, optimizer, …)"
        )
    if not isinstance(method, Method):
        raise refuse("method", method, "it must be a method of easgd", "write easgd.EASGD(period=10)")
    for what, value, known in (("buffers", buffers, Buffers), ("nonfinite", nonfinite, Policy)):
        if value not in known.__args__:  # type: ignore[attr-defined]
            raise unknown(f"policy {what}", str(value), known.__args__)  # type: ignore[attr-defined]
    if overlap not in (True, False, "auto"):
        raise refuse("overlap", overlap, 'it is True, False or "auto"', 'write overlap="auto"')
    follow_thread_setting()
    optimizer = unwrapped(optimizer)
    method = with_momentum_of(optimizer, method)
    context = in_process_group(RunContext.from_environment(), model, process_group)
    context = at_center(context, center_name(model, optimizer, context, name))
    context = replace(context, compression=compression or context.compression)
    Codec.named(context.compression)  # refuses an unknown name
    guard = check_factor(context.guard if guard is None else guard)
    _check_number("patience", patience, int, "a number of exchanges ≥ 0", "patience=10")
    _check_number("deadline", deadline, float, "a number of seconds ≥ 0", "deadline=600")
    _check_number("seed", seed, int, "a whole number ≥ 0", "seed=0")
    if curvature is not None:
        _check_number("curvature", curvature, float, "a number ≥ 0", "curvature=None where it is not known")
    if saved is not None and not (isinstance(saved, dict) and {"slots", "version"} <= saved.keys()):
        raise refuse("saved", type(saved).__name__, "it is a center's state", 'give {"slots": …, "version": …}')
    worker = Worker(
        model, optimizer, method, context, buffers=buffers, nonfinite=nonfinite, overlap=overlap,
        deadline=deadline, seed=seed, curvature=curvature, saved=saved, patience=patience,
        include_frozen=include_frozen, process_group=process_group, guard=guard,
    )  # fmt: skip
    if reseed and not context.alone:
        seeding.reseed(worker.stream[0], context.incarnation)
        watch_loaders(worker)
    return worker


def _check_number(what: str, value: object, kind: type, bound: str, example: str) -> None:
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
        raise refuse(what, value, f"it is {bound}", f"write {example}")
