"""The hooks that drive a worker from a training loop that knows nothing of it."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from easgd.worker.worker import Worker


class TrainingHook:
    """Calls a function when the model runs, with its hook's arguments, in training only.

    A module's hooks are saved and copied with it, by `torch.save(model, path)` and `copy.deepcopy(model)`; a worker
    cannot be, and a copy of the model is not trained by it. There a hook that does nothing takes this one's place: the
    end of a `nullcontext`, which takes any arguments, and which any Python can load.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, *args: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self.function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def install_hooks(worker: Worker, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[RemovableHandle]:
    """Let the model's forward begin a step of the worker and the optimizer's step end it; return the handles.

    The hooks hold the worker: a script may call `attach` and forget what it returned. They must not be traced into a
    compiled graph.
    """

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before_step(opt: Any, args: Any, kwargs: Any) -> None:
        # The arguments are those of `step`, the optimizer itself first.
        worker.before_step(closure=any(a is not None for a in (*args[1:], kwargs.get("closure"))))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after_step(opt: Any, args: Any, kwargs: Any) -> None:
        worker.finish()

    me = weakref.ref(worker)

    def at_exit() -> None:
        if (living := me()) is not None:
            living.close()

    atexit.register(at_exit)
    if worker.exchange.comparing:
        worker.exchange.inputs.watch(model)
    return [
        # Before FSDP2's own hook, which gathers the weights: a method may set them to the center's first.
        model.register_forward_pre_hook(TrainingHook(lambda args: worker.begin()), prepend=worker.replica.sharded),
        optimizer.register_step_pre_hook(before_step),
        optimizer.register_step_post_hook(after_step),
    ]
