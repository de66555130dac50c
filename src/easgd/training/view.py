"""What a user sees of a run while it goes on: a live table in a terminal, plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any, Protocol, cast

from easgd.console import show, warn
from easgd.files import reason
from easgd.training.config import Config
from easgd.training.monitor import Monitor

Row = dict[str, Any]


class View(Protocol):
    """Where a run shows its progress."""

    def begin(self, config: Config, folder: str) -> None:
        """A run begins or is resumed."""

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        """Called often, with the used share of the budget and the seconds of training; a view draws when it likes."""

    def evaluated(self, row: Row, share: float, rest: tuple[int, int] | None = None) -> None:
        """The center was measured. `rest` counts what is measured after training: (3, 23) is the third of 23."""

    def note(self, text: str) -> None:
        """A line that is worth reading at once: settings, a warning, what is being waited for."""

    def end(self, state: str, reason: str) -> None:
        """The run has ended."""


class Silent:
    """Shows nothing: for notebooks that only want the result."""

    def begin(self, config: Config, folder: str) -> None: ...

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None: ...

    def evaluated(self, row: Row, share: float, rest: tuple[int, int] | None = None) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, state: str, reason: str) -> None: ...


class Plain(Silent):
    """One line per evaluation, and one every ten seconds in between; of what is measured afterwards, ten lines."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._started = False

    def begin(self, config: Config, folder: str) -> None:
        method = config.make_method().describe(config.workers, config.lr)
        self.note(f"{method}; {config.shown_rate}, {config.workers} workers, {config.data}, {config.engine} → {folder}")

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        if time.monotonic() - self._last <= 10:
            return
        self._last = time.monotonic()
        if monitor.steps:
            rate = f", {monitor.steps / seconds:.0f} steps/s" if seconds else ""
            loss = "" if monitor.loss is None else f", online loss {monitor.loss:.4f}"
            self.note(f"{share:4.0%}  {monitor.steps} steps{rate}{loss}")
        elif not self._started:
            self.note("starting the workers")
        self._started = True

    def evaluated(self, row: Row, share: float, rest: tuple[int, int] | None = None) -> None:
        self._last = time.monotonic()
        if rest is not None and rest[0] != rest[1] and rest[0] % math.ceil(rest[1] / 10):
            return
        self.note(f"{f'{share:4.0%}' if rest is None else counted(rest)}  {measures(row)}")

    def note(self, text: str) -> None:
        print(text, flush=True)

    def end(self, state: str, reason: str) -> None:
        self.note(f"{state}: {reason}")


class Json(Silent):
    """One line of JSON per evaluation and at the end, for programs; `run` names a run among several."""

    def __init__(self, run: str | None = None) -> None:
        self._name = {} if run is None else {"run": run}

    def evaluated(self, row: Row, share: float, rest: tuple[int, int] | None = None) -> None:
        self._print({"event": "evaluation", **row, "progress": round(share, 4)})

    def note(self, text: str) -> None:
        self._print({"event": "note", "text": text})

    def end(self, state: str, reason: str) -> None:
        self._print({"event": "end", "state": state, "reason": reason})

    def _print(self, data: Row) -> None:
        print(json.dumps({**data, **self._name}), flush=True)


class _Shielded:
    """Passes calls on to a view until one fails with an OSError."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> None:
            try:
                getattr(self._view, name)(*args)
            except OSError as error:
                self._view = Silent()
                show("")  # if it was stdout that failed, Python must not fail again when it flushes at exit
                warn(f"progress is no longer shown ({reason(error)}); going on")

        return call


def shielded(view: View) -> View:
    """Return a view whose output cannot end a training, whether a terminal was closed or a disk is full."""
    return cast(View, _Shielded(view))


def measures(row: Row) -> str:
    """Return time, losses and error of one evaluation in a line."""
    return (
        f"{row['time']:9.2f} s  {row['steps']:7d} steps  train loss {row['train_loss']:.4f}  "
        f"test loss {row['test_loss']:.4f}  test error {row['test_error']:7.2%}"
    )


def counted(rest: tuple[int, int]) -> str:
    """Return "measured  3 of 23"."""
    return f"measured {rest[0]:>{len(str(rest[1]))}} of {rest[1]}"


def choose(json_lines: bool = False, plain: bool = False) -> View:
    """Return the view that fits: JSON if asked for, a live table in a terminal, else plain lines."""
    if json_lines:
        return Json()
    if plain or not sys.stdout.isatty():
        return Plain()
    from easgd.training.live import Live

    return Live()
