"""What a user sees of a run while it goes on: a live table in a terminal, plain lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Protocol

from easgd.training.config import Config
from easgd.training.monitor import Monitor

Row = dict[str, Any]


class View(Protocol):
    """What a run tells its onlooker."""

    def begin(self, config: Config, folder: str) -> None:
        """A run begins or goes on."""

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        """Called often; a view decides itself when to draw."""

    def evaluated(self, row: Row, share: float) -> None:
        """The center was measured."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def end(self, state: str, reason: str) -> None:
        """The run is over."""


class Silent:
    """Nothing to see: for notebooks that only want the result."""

    def begin(self, config: Config, folder: str) -> None:
        """Nothing."""

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        """Nothing."""

    def evaluated(self, row: Row, share: float) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self, state: str, reason: str) -> None:
        """Nothing."""


class Plain(Silent):
    """One line per evaluation, and one every ten seconds in between."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def begin(self, config: Config, folder: str) -> None:
        """Settings in one line."""
        method = config.make_method().describe(config.workers, config.lr)
        print(f"{method}; η = {config.lr:g}, {config.workers} workers, {config.data}, {config.engine} → {folder}")

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        """Every ten seconds."""
        if time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            rate = f"{monitor.steps / seconds:.0f} steps/s" if seconds else ""
            loss = "" if monitor.loss is None else f", online loss {monitor.loss:.4f}"
            print(f"{share:4.0%}  {monitor.steps} steps, {rate}{loss}", flush=True)

    def evaluated(self, row: Row, share: float) -> None:
        """The measures."""
        self._last = time.monotonic()
        print(f"{share:4.0%}  {measures(row)}", flush=True)

    def note(self, text: str) -> None:
        """As it is."""
        print(text, flush=True)

    def end(self, state: str, reason: str) -> None:
        """How it ended."""
        print(f"{state}: {reason}", flush=True)


class Json(Silent):
    """One line of JSON per evaluation and at the end, for programs; `run` names a run among several."""

    def __init__(self, run: str | None = None) -> None:
        self._name = {} if run is None else {"run": run}

    def evaluated(self, row: Row, share: float) -> None:
        """The measures."""
        self._print({"event": "evaluation", **row, "progress": round(share, 4)})

    def note(self, text: str) -> None:
        """As an event."""
        self._print({"event": "note", "text": text})

    def end(self, state: str, reason: str) -> None:
        """How it ended."""
        self._print({"event": "end", "state": state, "reason": reason})

    def _print(self, data: Row) -> None:
        print(json.dumps({**data, **self._name}), flush=True)


def measures(row: Row) -> str:
    """Time, losses and error of one evaluation, in a line."""
    return (
        f"{row['time']:9.2f} s  {row['steps']:7d} steps  train loss {row['train_loss']:.4f}  "
        f"test loss {row['test_loss']:.4f}  test error {row['test_error']:7.2%}"
    )


def choose(json_lines: bool = False, plain: bool = False) -> View:
    """The view that fits: JSON if asked for, a live table in a terminal, else plain lines."""
    if json_lines:
        return Json()
    if plain or not sys.stdout.isatty():
        return Plain()
    from easgd.training.live import Live

    return Live()
