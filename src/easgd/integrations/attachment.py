"""What the callbacks of all frameworks do: attach, show the center, save and resume a worker, leave the run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from easgd.errors import refuse
from easgd.integrations.observables import Observables
from easgd.methods import Method
from easgd.worker.attach import attach
from easgd.worker.batch_order import Stream
from easgd.worker.context import RunContext
from easgd.worker.held_center import HeldCenter, copied
from easgd.worker.schedule_free import set_train_modes, train_modes
from easgd.worker.tensors import unwrapped
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
        self.stream: Stream | None = None
        self._held: HeldCenter | None = None
        self._center: dict[str, Tensor] | None = None

    def open_stream(self, model: nn.Module) -> Stream:
        """Return this worker's part of the data; `finish` closes it."""
        self.stream = Stream(self.context, model)
        return self.stream

    def folder(self, root: str | Path) -> str:
        """Return this worker's folder under `root`; alone, `root` itself."""
        return str(root) if self.context.alone else str(Path(root) / f"worker-{self.context.rank}")

    def attach(
        self, model: nn.Module, optimizer: Any, state: dict[str, Any] | None = None, step: int = 0
    ) -> Worker:  # fmt: skip
        """Join the run at the framework's `step`; `state` is what `state` gave when a checkpoint was saved."""
        optimizer = unwrapped(optimizer)
        # A model that was restored holds the center's x. Joining moves it with all that a schedule-free optimizer has
        # beside it, which is put back with the worker's own weights.
        restored = copy.deepcopy(optimizer.state_dict()) if state is not None and train_modes(optimizer) else None
        if restored is not None:
            set_train_modes(optimizer, [False] * len(optimizer.param_groups))
        self.worker = attach(model, optimizer, self.method, **self.settings)
        self.worker.orders_batches = False  # the `Stream` does
        # A compiled module prefixes its names; the center's state dict has the plain ones.
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.observables = Observables(self.worker)
        self.training = True
        if state is not None:
            self.model.load_state_dict(state["weights"])
            if restored is not None:
                optimizer.load_state_dict(restored)
                set_train_modes(optimizer, state.get("modes", []))
            self.worker.load_state_dict(state["worker"])
        self._ahead = step - self.worker.clock
        return self.worker

    def end_step(self, step: int) -> None:
        """Let the worker's clock follow the framework's, which counts a step that a gradient scaler has skipped."""
        if self.training and self.worker is not None:
            while self.worker.clock + self._ahead < step:
                self.worker.skip_step()

    def begin_step(self) -> None:
        """Begin the worker's step now, once per optimizer step, whichever forward the framework calls."""
        self._center = None
        if self.training and self.worker is not None:
            self.worker.begin()

    def state(self) -> dict[str, Any]:
        """Return the worker's own weights and its place in the method; the framework saves the optimizer."""
        assert self.worker is not None
        held, optimizer = self._held, self.worker.replica.optimizer
        weights, modes = (copied(self.model), train_modes(optimizer)) if held is None else (held.own, held.modes)
        return {"weights": weights, "modes": modes, "worker": self.worker.state_dict()}

    # the center's weights --------------------------------------------------------------------------------------

    def center(self) -> dict[str, Tensor]:
        """Return the center. Until the next step it stays the same, so that what is saved is what was validated."""
        assert self.worker is not None
        if self._center is None:
            self._center = self.worker.center()
        return self._center

    def swap_in(self) -> None:
        """Put the worker's own weights aside and load the center's; nothing if that was done already."""
        if self.training and self.worker is not None and self._held is None:
            self._held = HeldCenter(self.model, self.worker.replica.optimizer, self.center())

    def swap_out(self) -> None:
        """Load the worker's own weights again, bit for bit."""
        if self._held is not None:
            held, self._held = self._held, None
            held.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the center's weights inside a `with` block; nested blocks swap once."""
        outer = self._held is None
        self.swap_in()
        try:
            yield
        finally:
            if outer:
                self.swap_out()

    def finish(self, *, load_center: bool = True) -> None:
        """Leave the run; the model keeps the center's weights, unless told otherwise."""
        if self.stream is not None:
            self.stream.close()
        if not self.training or self.worker is None:
            return
        if load_center:
            self.swap_in()
            self._held = None
        else:
            self.swap_out()
        self.training = False
        self.worker.close()
