"""Output that cannot end a training: a closed terminal, a closed pipe or a full disk behind it costs the text only."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Literal

_warned: set[str] = set()


def show(text: str, to: Literal["stdout", "stderr"] = "stdout") -> None:
    """Write `text` at once. If that fails, this and all later output of the stream is discarded."""
    stream = getattr(sys, to)
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # Python would try to write the buffered rest again at exit, and fail again.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def warn(text: str) -> None:
    """Print one line of warning on stderr."""
    show(f"easgd: warning: {text}\n", "stderr")


def warn_once(text: str) -> None:
    """Print a warning unless this process has printed the same one before."""
    if text not in _warned:
        _warned.add(text)
        warn(text)
