"""A worker's variable as one flat vector, whatever tensors it is made of.

`Replica` reads and moves the parameters that an optimizer trains. The tensors stay the user's: nothing is replaced,
only read and changed in place. A single flat parameter, as in the simulator, is used without a copy.

`pack` goes the other way, for a model that is ours to rearrange: its parameters and their gradients become views of
two vectors, so that many virtual workers can take turns with one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Replica:
    """The parameters of one worker and the optimizer that moves them, seen as one flat vector."""

    def __init__(self, params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.params = list(params)
        self.optimizer = optimizer
        self.sizes = [p.numel() for p in self.params]
        self.size = sum(self.sizes)
        self._flat = self.params[0].detach() if len(self.params) == 1 and self.params[0].dim() == 1 else None
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    @property
    def lr(self) -> float:
        """The current learning rate η (of the first parameter group)."""
        return float(self.optimizer.param_groups[0]["lr"])

    def read(self) -> Tensor:
        """Return the stored parameters as one vector; it may share their memory, so read it and let it go."""
        if self._flat is not None:
            return self._flat
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    def position(self) -> Tensor:
        """Return the paper's x, where the optimizer stores a look-ahead point.

        torch's `SGD(nesterov=True)` keeps y = x + δv and buf = −v/η, so x = y − δv = y + δη·buf,
        with the η of the last step: a scheduler may have changed the optimizer's own since.
        """
        out = self.read()
        pieces: list[Tensor] | None = None
        for rate, group in zip(self._rates, self.optimizer.param_groups, strict=True):
            if not group.get("nesterov"):
                continue
            for p in group["params"]:
                buf = self.optimizer.state[p].get("momentum_buffer") if p in self.optimizer.state else None
                if buf is None:
                    continue
                if pieces is None:
                    out = out.clone() if self._flat is not None else out
                    pieces = list(torch.split(out, self.sizes))
                pieces[self._index(p)].add_(buf.detach().reshape(-1), alpha=group["momentum"] * rate)
        return out

    def _index(self, param: Tensor) -> int:
        return next(i for i, p in enumerate(self.params) if p is param)

    def write_(self, x: Tensor) -> None:
        """Set the parameters to the vector x."""
        if self._flat is not None:
            self._flat.copy_(x)
            return
        with torch.no_grad():
            for p, piece in zip(self.params, torch.split(x, self.sizes), strict=True):
                p.copy_(piece.view_as(p))

    def add_(self, d: Tensor, alpha: float = 1.0) -> None:
        """Move the parameters by alpha·d."""
        if self._flat is not None:
            self._flat.add_(d, alpha=alpha)
            return
        with torch.no_grad():
            for p, piece in zip(self.params, torch.split(d, self.sizes), strict=True):
                p.add_(piece.view_as(p), alpha=alpha)

    def follow_rate(self) -> None:
        """Keep the paper's velocity when the learning rate changes.

        torch stores buf = −v/η, so v would jump with η. Multiplying buf by η_old/η_new keeps v, and with it
        x = y − δv, what Algorithm 2 means. A rate of zero has no such buf: the change is made good when it ends.
        """
        for i, group in enumerate(self.optimizer.param_groups):
            old, new = self._rates[i], float(group["lr"])
            if new == old or new == 0.0 or not group.get("nesterov"):
                continue
            self._rates[i] = new
            for p in group["params"]:
                state: dict[str, Any] = self.optimizer.state.get(p, {})
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].mul_(old / new)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, optimizer state and the learning rates last seen."""
        return {"params": self.params, "optimizer": self.optimizer.state_dict(), "rates": self._rates}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for p, saved in zip(self.params, state["params"], strict=True):
            p.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self._rates = list(state["rates"])

    def reset_(self, x: Tensor) -> None:
        """Start anew from x, as a worker that has just joined: no velocity, no moments."""
        self.write_(x)
        self.optimizer.state.clear()
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]


def pack(module: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Lay a module's parameters, and their gradients, out in one vector each; return (parameters, gradients).

    Shapes and memory formats are kept. Accumulate into the gradients (`backward`), and zero the vector, not `.grad`.
    """
    params = list(module.parameters())
    x = torch.cat([_storage_order(p.detach()) for p in params])
    g = torch.zeros_like(x)
    at = 0
    for p in params:
        size, stride, n = p.size(), p.stride(), p.numel()
        p.data = x.as_strided(size, stride, at)
        p.grad = g.as_strided(size, stride, at)
        at += n
    return x, g


def _storage_order(tensor: Tensor) -> Tensor:
    """The elements in the order of memory, which for `channels_last` is not that of the indices."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
