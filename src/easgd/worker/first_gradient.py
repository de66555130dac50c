"""Sees whether two workers draw the same batches: then their first gradients are the same to the last bit."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from easgd.center.client import CenterClient
from easgd.errors import UnreachableError
from easgd.worker.recorder import Recorder


def compare_first_gradients(client: CenterClient, params: Sequence[Tensor], rank: int, recorder: Recorder) -> bool:
    """Warn if another worker's first gradient is the same to the last bit; False if this was not a gradient yet.

    All start from one point, so nothing but their data tells the first gradients apart. Later ones, and the variables
    themselves, differ through the exchanges.
    """
    gradients = [p.grad for p in params if p.grad is not None]
    if not all(bool(g.isfinite().all()) for g in map(_dense, gradients)):
        return False  # a step that was skipped
    if not any(bool(g.any()) for g in gradients):
        return True
    digest = hashlib.blake2b(digest_size=8)
    for g in gradients:
        digest.update(_dense(g).detach().contiguous().cpu().view(torch.uint8).numpy().data)
    try:
        same = client.same_gradient(int.from_bytes(digest.digest(), "little") >> 1)
    except UnreachableError:
        return True
    if len(same) == 1:  # of several equal workers, the second to report speaks
        line = (
            f"workers {same[0]} and {rank} have computed exactly the same first gradient: they draw the "
            "same batches; read data through worker.shard(loader), or seed generators by worker.rank"
        )
        recorder.event("warning", line)
        print(f"easgd: warning: {line}", file=sys.stderr)
    return True


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
