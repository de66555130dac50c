"""A worker's parameters as one flat vector.

`Replica` reads and changes the parameters that an optimizer trains, in place: the user's tensors are never replaced. A
single flat parameter, as in the simulator, is used without a copy.

`pack` rearranges a model that the library owns: its parameters and gradients become views of two vectors, so that many
simulated workers can use one model in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from easgd.errors import SettingError


class Replica:
    """One worker's parameters and their optimizer, as one flat vector.

    Elements are in memory order, so that a `channels_last` weight is copied contiguously. Parameters that are not
    float32 or not on the CPU are copied through a float32 vector in host memory (pinned for CUDA).
    """

    def __init__(self, params: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.params = list(params)
        self.optimizer = optimizer
        self.sizes = [p.numel() for p in self.params]
        self.size = sum(self.sizes)
        # A single flat parameter is the vector itself, whatever its dtype: nothing is copied.
        self._flat = self.params[0].detach() if len(self.params) == 1 and self.params[0].dim() == 1 else None
        self._stage: Tensor | None = None
        self._index = {id(p): i for i, p in enumerate(self.params)}
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]

    @property
    def lr(self) -> float:
        """The current learning rate η of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def read(self) -> Tensor:
        """Return the parameters as one vector. It may share their memory, and the next call may overwrite it."""
        if self._flat is not None:
            return self._flat
        devices = {p.device for p in self.params if p.is_cuda}
        if self._stage is None:
            self._stage = torch.empty(self.size, dtype=torch.float32, pin_memory=bool(devices))
        for piece, p in zip(torch.split(self._stage, self.sizes), self.params, strict=True):
            piece.copy_(in_memory_order(p.detach()), non_blocking=p.is_cuda)
        for device in devices:  # the copies are asynchronous
            torch.cuda.current_stream(device).synchronize()
        return self._stage

    def owns(self, vector: Tensor) -> bool:
        """Return whether a vector is the parameters' own memory, which an answer must not overwrite."""
        return self._flat is not None and vector.data_ptr() == self._flat.data_ptr()

    def in_place(self) -> list[tuple[Tensor, float]] | None:
        """Return each tensor's memory as a vector with its gain, if they may be moved just before a step; else None.

        The gain is how far a tensor must move before the step to have moved by 1 after it. If the step adds to x
        something that does not depend on x, the gain is 1. Weight decay that only scales x by 1 − ηλ scales the move as
        well: the gain is 1/(1 − ηλ). Optimizers that are not known to be of this kind give None.
        """
        if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in self.params):
            return None
        kind, gains = type(self.optimizer), [1.0] * len(self.params)
        for group in self.optimizer.param_groups:
            shrinks = float(group["lr"]) * float(group.get("weight_decay", 0.0))
            # With decay inside a momentum buffer or Adam's moments, later steps would depend on the x before the move.
            sgd = kind is torch.optim.SGD and (shrinks == 0 or group["momentum"] == 0)
            adam = kind in (torch.optim.Adam, torch.optim.AdamW) and (shrinks == 0 or group["decoupled_weight_decay"])
            if not (sgd or adam) or shrinks >= 0.5:
                return None
            for p in group["params"]:
                if p.grad is not None and id(p) in self._index:  # the optimizer skips a tensor without a gradient
                    gains[self._index[id(p)]] = 1 / (1 - shrinks)
        return [(in_memory_order(p.detach()), gain) for p, gain in zip(self.params, gains, strict=True)]

    def position(self) -> Tensor:
        """Return the paper's x as one vector, also if the optimizer stores a look-ahead point.

        torch's `SGD(nesterov=True)` stores y = x + δv and buf = −v/η, so x = y − δv = y + δη·buf, with the η of the
        last step: a scheduler may have changed the optimizer's η since.
        """
        out = self.read()
        if not isinstance(self.optimizer, torch.optim.SGD):
            return out  # in other optimizers `momentum_buffer` may mean something else
        pieces: Sequence[Tensor] | None = None
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            if not group.get("nesterov"):
                continue
            for p in group["params"]:
                buf = self.optimizer.state[p].get("momentum_buffer") if p in self.optimizer.state else None
                if buf is None or id(p) not in self._index:
                    continue
                if pieces is None:
                    out = out.clone() if self._flat is not None else out
                    pieces = torch.split(out, self.sizes)
                same = buf.detach() if buf.stride() == p.stride() else torch.empty_like(p).copy_(buf)
                look_ahead = in_memory_order(same).to(out.device, out.dtype)
                pieces[self._index[id(p)]].add_(look_ahead, alpha=group["momentum"] * rate)
        return out

    def write_(self, x: Tensor) -> None:
        if self._flat is not None:
            self._flat.copy_(x)
            return
        for p, piece in zip(self.params, torch.split(x, self.sizes), strict=True):
            in_memory_order(p.detach()).copy_(piece, non_blocking=True)

    def add_(self, d: Tensor, alpha: float = 1.0) -> None:
        """Add alpha·d to the parameters."""
        if self._flat is not None:
            self._flat.add_(d, alpha=alpha)
            return
        for p, piece in zip(self.params, torch.split(d, self.sizes), strict=True):
            in_memory_order(p.detach()).add_(piece.to(p.device), alpha=alpha)

    def follow_rate(self) -> None:
        """Keep the paper's velocity v when the learning rate changes.

        torch stores buf = −v/η, so v would change with η. Multiplying buf by η_old/η_new keeps v, and with it
        x = y − δv, as in Algorithm 2. At η = 0 there is no such buf; it is rescaled when η is positive again.
        """
        if not isinstance(self.optimizer, torch.optim.SGD):
            return
        for i, group in enumerate(self.optimizer.param_groups):
            old, new = self.rates[i], float(group["lr"])
            if new == old or new == 0.0 or not group.get("nesterov"):
                continue
            self.rates[i] = new
            for p in group["params"]:
                state: dict[str, Any] = self.optimizer.state.get(p, {})
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].mul_(old / new)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters, the optimizer's state and the learning rates of the last step."""
        return {"params": self.params, "optimizer": self.optimizer.state_dict(), "rates": self.rates}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for p, saved in zip(self.params, state["params"], strict=True):
            p.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.rates = list(state["rates"])

    def reset_(self, x: Tensor) -> None:
        """Set the parameters to x and clear the optimizer's state, as for a worker that has just joined."""
        self.write_(x)
        self.optimizer.state.clear()
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]


def pack(module: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Make a module's parameters and gradients views of one vector each; return (parameters, gradients).

    Shapes and memory formats are kept. `backward` accumulates into the gradient vector; zero that vector and do not set
    `.grad` to None.

    >>> x, g = pack(torch.nn.Linear(2, 3))
    >>> x.shape, g
    (torch.Size([9]), tensor([0., 0., 0., 0., 0., 0., 0., 0., 0.]))
    """
    params = list(module.parameters())
    x = torch.cat([in_memory_order(p.detach()) for p in params])
    g = torch.zeros_like(x)
    at = 0
    for p in params:
        size, stride, n = p.size(), p.stride(), p.numel()
        p.data = x.as_strided(size, stride, at)
        p.grad = g.as_strided(size, stride, at)
        at += n
    return x, g


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return a view of a dense tensor as one vector in memory order, which may differ from index order."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if not torch.empty_like(tensor).stride() == tensor.stride():
        raise SettingError(f"a parameter of stride {tensor.stride()} has gaps in memory; make it contiguous() first")
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
