"""A worker's parameters as one flat vector.

`Replica` reads and changes the parameters that an optimizer trains, in place: the user's tensors are never replaced. A
single flat parameter, as in the simulator, is used without a copy.

`pack` rearranges a model that the library owns: its parameters and gradients become views of two vectors, so that many
simulated workers can use one model in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from easgd.device_copies import DeviceCopies
from easgd.dtensors import is_sharded, local
from easgd.errors import SettingError


class Replica:
    """One worker's parameters and their optimizer, as one flat vector.

    Elements are in memory order, so that a `channels_last` weight is copied contiguously. Parameters that are not
    float32 or not on the CPU are copied through a float32 vector in host memory (`device_copies`: how from a device).

    Args:
        params: what is read and changed.
        optimizer: what trains them.
        in_host_memory: whether the vector is to be there. Without it a single flat parameter is the vector wherever it
            lies, as in a simulation whose center lies there too.
    """

    def __init__(
        self, params: Sequence[Tensor], optimizer: torch.optim.Optimizer, *, in_host_memory: bool = True
    ) -> None:
        self._given = list(params)
        self.sharded = any(map(is_sharded, params))
        self.optimizer = optimizer
        self.sizes = [p.numel() for p in self.params]
        self.size = sum(self.sizes)
        # A single flat parameter is the vector itself, whatever its dtype: nothing is copied.
        self._lone = len(self._given) == 1 and self._given[0].dim() == 1 and not self.sharded
        self._flat = self._given[0].detach() if self._lone else None
        self._stage: Tensor | None = None
        self._in_host_memory, self._awaited = in_host_memory, True
        self._devices: list[torch.device] = []
        self._copies: DeviceCopies | None = None
        self._index = {id(p): i for i, p in enumerate(self._given)}
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]

    @property
    def params(self) -> list[Tensor]:
        """The tensors; of one that is sharded over ranks (a DTensor) this rank's part, in the parameter's own memory.

        They are asked for every time: FSDP2 may lay a shard out anew at the first forward.
        """
        return [local(p) for p in self._given] if self.sharded else self._given

    @property
    def lr(self) -> float:
        """The current learning rate η of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def read(self) -> Tensor:
        """Return the parameters as one vector. It may share their memory, and the next call may overwrite it."""
        if (copies := self._on_devices()) is not None:
            return self._fetched(copies, [])
        if self._flat is not None:
            return self._flat
        if self._stage is None:
            self._stage = torch.empty(self.size, dtype=torch.float32)
        for piece, p in zip(torch.split(self._stage, self.sizes), self.params, strict=True):
            piece.copy_(in_memory_order(p.detach()))
        return self._stage

    @contextmanager
    def unawaited(self, allowed: bool = True) -> Iterator[None]:
        """Within, `read` and `position` of parameters on devices return before the vector is whole: call `wait`."""
        self._awaited = not allowed
        try:
            yield
        finally:
            self._awaited = True

    def wait(self) -> None:
        """Wait for copies from and to devices that are under way; any thread may."""
        if self._copies is not None:
            self._copies.wait()

    def send(self, d: Tensor) -> None:
        """Begin to copy to the devices what `add_` or `write_` will be called with; in host memory nothing is to do."""
        if self._copies is not None:
            self._copies.send(d)

    def _on_devices(self) -> DeviceCopies | None:
        """Return the way to parameters on devices; None in host memory. A model may have been moved since `attach`."""
        if not self._in_host_memory:
            return None
        devices = [p.device for p in self.params]
        if devices != self._devices:
            self.wait()  # memory that is given up must not be under a copy
            away = any(device.type != "cpu" for device in devices)
            self._devices, self._copies = devices, DeviceCopies(self.sizes, devices) if away else None
        if self._lone:
            self._flat = self.params[0].detach() if self._copies is None else None
        return self._copies

    def _fetched(self, copies: DeviceCopies, ahead: list[tuple[int, Tensor, float]]) -> Tensor:
        out = copies.read(self._vectors(), ahead)
        if self._awaited:
            copies.wait()
        return out

    def _vectors(self) -> list[Tensor]:
        return [in_memory_order(p.detach()) for p in self.params]

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
        if not (ahead := self._look_ahead()):
            return self.read()
        if (copies := self._on_devices()) is not None:
            return self._fetched(copies, ahead)
        out = self.read()
        out = out.clone() if self._flat is not None else out
        pieces = torch.split(out, self.sizes)
        for i, look_ahead, factor in ahead:
            pieces[i].add_(look_ahead.to(out.device, out.dtype), alpha=factor)
        return out

    def _look_ahead(self) -> list[tuple[int, Tensor, float]]:
        """Return x − y of Nesterov's method: (parameter, its buffer in memory order, δη)."""
        found: list[tuple[int, Tensor, float]] = []
        if not isinstance(self.optimizer, torch.optim.SGD):
            return found  # in other optimizers `momentum_buffer` may mean something else
        self._know_groups()
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            if not group.get("nesterov"):
                continue
            for p in group["params"]:
                buf = self.optimizer.state[p].get("momentum_buffer") if p in self.optimizer.state else None
                if buf is None or id(p) not in self._index:
                    continue
                here, buf, i = local(p), local(buf), self._index[id(p)]
                same = buf.detach() if buf.stride() == here.stride() else torch.empty_like(here).copy_(buf)
                found.append((i, self._stretch(in_memory_order(same), i), group["momentum"] * rate))
        return found

    def _stretch(self, vector: Tensor, i: int) -> Tensor:
        """The elements of tensor i, given as a vector, that this replica has: all of them."""
        return vector

    def part(self, start: int, stop: int) -> Replica:
        """Return elements `start` to `stop` of the vector as a replica of their own, over the same memory."""
        return self if (start, stop) == (0, self.size) else ReplicaPart(self, start, stop)

    def write_(self, x: Tensor) -> None:
        if (copies := self._on_devices()) is not None:
            copies.apply(torch._foreach_copy_, self._vectors(), x)
            return
        if self._flat is not None:
            self._flat.copy_(x)
            return
        for p, piece in zip(self.params, torch.split(x, self.sizes), strict=True):
            in_memory_order(p.detach()).copy_(piece)

    def add_(self, d: Tensor, alpha: float = 1.0) -> None:
        """Add alpha·d to the parameters."""
        if self._copies is not None:
            self._copies.apply(partial(torch._foreach_add_, alpha=alpha), self._vectors(), d)
            return
        if self._flat is not None:
            self._flat.add_(d, alpha=alpha)
            return
        for p, piece in zip(self.params, torch.split(d, self.sizes), strict=True):
            in_memory_order(p.detach()).add_(piece, alpha=alpha)

    def follow_rate(self) -> None:
        """Keep the paper's velocity v when the learning rate changes.

        torch stores buf = −v/η, so v would change with η. Multiplying buf by η_old/η_new keeps v, and with it
        x = y − δv, as in Algorithm 2. At η = 0 there is no such buf; it is rescaled when η is positive again.
        """
        if not isinstance(self.optimizer, torch.optim.SGD):
            return
        self._know_groups()
        for i, group in enumerate(self.optimizer.param_groups):
            old, new = self.rates[i], float(group["lr"])
            if new == old or new == 0.0 or not group.get("nesterov"):
                continue
            self.rates[i] = new
            for p in group["params"]:
                state: dict[str, Any] = self.optimizer.state.get(p, {})
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].mul_(old / new)

    def _know_groups(self) -> None:
        """Take the learning rates of groups that a script has added since; nothing has moved at another one yet."""
        self.rates.extend(float(group["lr"]) for group in self.optimizer.param_groups[len(self.rates) :])

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


class ReplicaPart(Replica):
    """A stretch of a replica's vector: what one fragment's exchange reads and changes. It may cut through a tensor."""

    def __init__(self, whole: Replica, start: int, stop: int) -> None:
        self.whole, self.optimizer, self.size = whole, whole.optimizer, stop - start
        self._span, self._stage = slice(start, stop), None
        self._in_host_memory, self._lone, self._awaited = whole._in_host_memory, False, True
        self._devices, self._copies = [], None
        edges = [0, *itertools.accumulate(whole.sizes)]
        spans = [(max(start - a, 0), min(stop - a, b - a)) for a, b in itertools.pairwise(edges)]
        self._cuts = {i: slice(a, b) for i, (a, b) in enumerate(spans) if a < b}  # of the tensors that it meets
        self.sizes = [cut.stop - cut.start for cut in self._cuts.values()]
        self._index = {id(whole._given[i]): k for k, i in enumerate(self._cuts)}

    @property
    def params(self) -> list[Tensor]:
        """The tensors' stretches, as vectors; asked for anew, because a tensor's memory may have been replaced."""
        tensors = self.whole.params
        return [in_memory_order(tensors[i].detach())[cut] for i, cut in self._cuts.items()]

    @property
    def _flat(self) -> Tensor | None:  # type: ignore[override]
        flat = self.whole._flat
        return None if flat is None else flat[self._span]

    @property
    def rates(self) -> list[float]:  # type: ignore[override]
        """The learning rates of the last step."""
        return self.whole.rates

    def _stretch(self, vector: Tensor, i: int) -> Tensor:
        return vector[list(self._cuts.values())[i]]


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
