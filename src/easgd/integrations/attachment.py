"""What the callbacks of all frameworks do: attach, show the center, save and resume a worker, leave the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from easgd.errors import refuse
from easgd.integrations.observables import Observables
from easgd.methods import Method
from easgd.worker.attach import attach
from easgd.worker.context import RunContext
from easgd.worker.worker import Worker


class Attachment:
    """One training of a framework, attached to its run from `attach` to `finish`.

    While it trains, the model holds the worker's own weights, but for the time between `swap_in` and `swap_out`.
    Both directions copy in place. After `finish` the model is the user's again.
    """

    def __init__(self, method: Method, settings: dict[str, Any]) -> None:
        if settings.get("buffers") == "recalibrate":
            raise refuse("buffers", "recalibrate", "a callback has no inputs to measure with", 'write "average"')
        self.method, self.settings = method, settings
        self.context = RunContext.from_environment()
        self.worker: Worker | None = None
        self.training = False
        self._own: dict[str, Tensor] | None = None
        self._center: dict[str, Tensor] | None = None

    def folder(self, root: str | Path) -> str:
        """Return this worker's folder under `root`; alone, `root` itself."""
        return str(root) if self.context.alone else str(Path(root) / f"worker-{self.context.rank}")

    def attach(self, model: nn.Module, optimizer: Any, state: dict[str, Any] | None = None) -> Worker:
        """Join the run; `state` is what `state` gave when a checkpoint was saved."""
        self.worker = attach(model, optimizer, self.method, **self.settings)
        # A compiled module prefixes its names; the center's state dict has the plain ones.
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.observables = Observables(self.worker)
        self.training = True
        if state is not None:
            self.model.load_state_dict(state["weights"])
            self.worker.load_state_dict(state["worker"])
        return self.worker

    def begin_step(self) -> None:
        """Begin the worker's step now, once per optimizer step, whichever forward the framework calls."""
        self._center = None
        if self.training and self.worker is not None:
            self.worker.begin()

    def state(self) -> dict[str, Any]:
        """Return the worker's own weights and its place in the method; the framework saves the optimizer."""
        assert self.worker is not None
        weights = _copy(self.model) if self._own is None else self._own
        return {"weights": weights, "worker": self.worker.state_dict()}

    # the center's weights --------------------------------------------------------------------------------------

    def center(self) -> dict[str, Tensor]:
        """Return the center. Until the next step it stays the same, so that what is saved is what was validated."""
        assert self.worker is not None
        if self._center is None:
            self._center = self.worker.center()
        return self._center

    @torch.no_grad()
    def swap_in(self) -> None:
        """Put the worker's own weights aside and load the center's; nothing if that was done already."""
        if self.training and self._own is None:
            center = self.center()
            self._own = _copy(self.model)
            self.model.load_state_dict(center)

    @torch.no_grad()
    def swap_out(self) -> None:
        """Load the worker's own weights again, bit for bit."""
        if self._own is not None:
            own, self._own = self._own, None
            self.model.load_state_dict(own)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the center's weights inside a `with` block; nested blocks swap once."""
        outer = self._own is None
        self.swap_in()
        try:
            yield
        finally:
            if outer:
                self.swap_out()

    def finish(self, *, load_center: bool = True) -> None:
        """Leave the run; the model keeps the center's weights, unless told otherwise."""
        if not self.training or self.worker is None:
            return
        if load_center:
            self.swap_in()
            self._own = None
        else:
            self.swap_out()
        self.training = False
        self.worker.close()


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
