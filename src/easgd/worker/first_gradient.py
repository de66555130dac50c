"""Sees whether two workers draw the same batches: then their first gradients are the same to the last bit.

Dropout draws other masks on each, and hides that. Of a model that has it, the inputs of the first step are compared.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from easgd.center.client import CenterClient
from easgd.errors import UnreachableError
from easgd.worker.recorder import Recorder


class FirstInputs:
    """What a model with dropout is given before its first step: all of it, since episodes may begin at one state."""

    def __init__(self, model: nn.Module) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._wanted = any(isinstance(part, _DropoutNd) and part.p > 0 for part in model.modules())
        self.digest: int | None = None

    def add(self, inputs: Sequence[object]) -> None:
        """Take in the arguments of a forward; those by keyword are not seen."""
        if self._wanted:
            for tensor in inputs:
                if isinstance(tensor, Tensor) and tensor.numel():
                    self._digest.update(_bytes(tensor))
                    self.digest = int.from_bytes(self._digest.digest(), "little") >> 1


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
        what, known = (
            "computed exactly the same first gradient: they draw the same batches",
            int.from_bytes(digest.digest(), "little") >> 1,
        )
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


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _bytes(tensor: Tensor) -> memoryview:
    return _dense(tensor).detach().contiguous().cpu().flatten().view(torch.uint8).numpy().data
