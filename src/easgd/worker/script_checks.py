"""Notices what a script does beside its attached optimizer, which would make the center worthless in silence.

weights loaded after `attach`       the workers would be pulled back to the weights that the center began with
another optimizer takes the steps   nothing would ever be exchanged
the optimizer is another model's    the center would have none of its steps
the script ends very early          the center would have nothing of the training
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from easgd.console import warn
from easgd.errors import SettingError

if TYPE_CHECKING:
    from easgd.worker.worker import Worker

STEPS_OF_ANOTHER = 20
"""In a row: some scripts have two optimizers for one model, and step them in turn."""
_SAMPLE = 64


class StartingWeights:
    """The first elements of every parameter as they were when the worker joined."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._kept = [(p, _sample(p)) for p in tensors if isinstance(p, nn.Parameter)]

    def check(self, alone: bool) -> None:
        """Refuse weights that have changed since, but for the rounding to another dtype.

        A script alone has no center that could miss them: it is warned before it is launched. What is not finite is
        left to the worker's policy.
        """
        if not any(_changed(parameter, kept) for parameter, kept in self._kept):
            return
        what = "the model's weights were changed between attach and the first step, as by load_state_dict"
        if not alone:
            raise SettingError(f"{what}: the center does not have them; call easgd.attach after that")
        warn(f"{what}: under `easgd launch` the center would not have them; call easgd.attach after that")


def _changed(parameter: Tensor, kept: Tensor) -> bool:
    now = _sample(parameter)
    return bool(now.isfinite().all()) and not torch.allclose(now, kept, rtol=0.02, atol=1e-6)


def _sample(parameter: Tensor) -> Tensor:
    return parameter.detach().flatten()[:_SAMPLE].to("cpu", torch.float32, copy=True)


class OtherOptimizers:
    """Counts the steps that other optimizers take with a worker's parameters while its own takes none."""

    def __init__(self, worker: Worker) -> None:
        self.worker = weakref.ref(worker)
        self.steps = 0
        self._strangers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def watch(self) -> RemovableHandle:
        """Look at the steps of all optimizers of this process until the handle is removed."""
        return register_optimizer_step_post_hook(self._stepped)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        worker = self.worker()
        if worker is None or optimizer in self._strangers:
            return
        if optimizer is worker.replica.optimizer:
            self.steps = 0
            return
        if not any(id(p) in worker.tied for group in optimizer.param_groups for p in group["params"]):
            self._strangers.add(optimizer)
            return
        self.steps += 1
        if self.steps == STEPS_OF_ANOTHER:
            mine, other = type(worker.replica.optimizer).__name__, type(optimizer).__name__
            tell(
                worker,
                f"another optimizer ({other}) has taken the last {self.steps} steps with this model, the attached one "
                f"({mine}) none: nothing is exchanged; give attach the optimizer that steps",
            )


def check_optimizer(worker: Worker) -> None:
    """Say of an optimizer that has no parameter of the model that it may belong to another."""
    moved = {id(p) for group in worker.replica.optimizer.param_groups for p in group["params"]}
    trained = [p for p in worker.module.parameters() if p.requires_grad]
    if trained and not any(id(p) in moved for p in trained):
        tell(worker, "the optimizer has none of the model's parameters: it does not train what is tied to the center; "
             "give attach a model and its own optimizer")  # fmt: skip


def check_end(worker: Worker) -> None:
    """Say of a worker whose script has ended well that the center has nothing of its steps."""
    steps, method = worker.clock, worker.method
    if steps == 0:
        tell(worker, "the attached optimizer has taken no step: the center is what it was")
    elif worker.state.exchanges <= 1 < steps and not method.sequential:
        tell(worker, f"ended after {steps} steps, before the first exchange of them (period {method.period}): the "
             "center has nothing of its training; write a smaller period")  # fmt: skip


def tell(worker: Worker, line: str) -> None:
    """Record a warning of one worker, and print it."""
    worker.recorder.event("warning", line)
    warn(f"worker {worker.context.rank}: {line}")
