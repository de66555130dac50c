"""Sees whether two workers draw the same batches: then their first gradients are the same to the last bit.

Dropout draws other masks on each, and hides that. Of a model that draws random numbers, by whatever function, the
inputs of the first step are compared.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from easgd.center.client import CenterClient
from easgd.errors import UnreachableError
from easgd.worker.hooks import TrainingHook
from easgd.worker.recorder import Recorder


class FirstInputs:
    """What a model is given before its first step: all of it, since episodes may begin at one state."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._given = self._draws = False
        self._generators: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []

    def watch(self, model: nn.Module) -> None:
        """Look on until `close`."""
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._hooks = [
            model.register_forward_pre_hook(TrainingHook(lambda args: self.before(args, device))),
            model.register_forward_hook(TrainingHook(lambda args, output: self.after(device))),
        ]

    def close(self) -> None:
        """Take the hooks off the model: from the second step on, gradients differ by the exchanges."""
        for hook in self._hooks:
            hook.remove()

    def before(self, inputs: Sequence[object], device: torch.device) -> None:
        """Take in the arguments of a forward; those by keyword are not seen."""
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.numel():
                self._digest.update(_bytes(tensor))
                self._given = True
        self._generators = _generators(device)

    def after(self, device: torch.device) -> None:
        """See whether the forward has drawn random numbers; actions that are drawn from its output do not count."""
        drawn = zip(self._generators, _generators(device), strict=True)
        self._draws = self._draws or not all(torch.equal(old, new) for old, new in drawn)

    @property
    def digest(self) -> int | None:
        """Of all inputs; None where the gradient tells as much, or where no input was seen."""
        return _number(self._digest) if self._draws and self._given else None


def _generators(device: torch.device) -> list[Tensor]:
    """The states of the generators that a forward on this device draws from."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def compare_first_gradients(
    client: CenterClient, params: Sequence[Tensor], rank: int, recorder: Recorder, inputs: FirstInputs
) -> bool:
    """Warn if another worker's first gradient is the same to the last bit; False if this was not a gradient yet.

    All start from one point, so nothing but their data tells the first gradients apart. Later ones, and the variables
    themselves, differ through the exchanges.
    """
    gradients = [p.grad for p in params if p.grad is not None]
    if not all(bool(g.isfinite().all()) for g in map(_dense, gradients)):
        return False  # a step that was skipped
    if not any(bool(g.any()) for g in gradients):
        return True
    what, known = "read exactly the same first batch", inputs.digest
    if known is None:
        digest = hashlib.blake2b(digest_size=8)
        for g in gradients:
            digest.update(_bytes(g))
        what, known = "computed exactly the same first gradient: they draw the same batches", _number(digest)
    try:
        same = client.same_gradient(known)
    except UnreachableError:
        return True
    if len(same) == 1:  # of several equal workers, the second to report speaks
        line = (
            f"workers {same[0]} and {rank} have {what}; read data through worker.shard(loader), or choose it by "
            "worker.rank"
        )
        recorder.event("warning", line)
        print(f"easgd: warning: {line}", file=sys.stderr)
    return True


def _number(digest: hashlib.blake2b) -> int:
    return int.from_bytes(digest.digest(), "little") >> 1


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _bytes(tensor: Tensor) -> memoryview:
    return _dense(tensor).detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data
