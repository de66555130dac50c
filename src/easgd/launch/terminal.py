"""The standard input of a worker: a terminal of its own at which nobody types, where the launcher has one.

Scripts ask standard input how wide the terminal is (`stty size`), and fail where it is none. Workers cannot share the
launcher's: they are in sessions of their own, so the kernel would not hold them back from reading what is typed at the
shell while the run is in the background, and of two that call `input()` either might get the line. So each opens a
pseudoterminal of the launcher's size. Nothing is ever typed there: a read finds the end of the input at once, and
`input()` raises `EOFError` rather than wait for an answer that cannot come. It is no controlling terminal: Ctrl-C goes
to the launcher alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import MutableMapping

from easgd.errors import refuse

TERMINAL = "EASGD_TERMINAL"
_PREFIX = 8
"""Columns that the launcher puts before a worker's lines, "[12.3] ", so that a full line still fits."""
_NARROWEST = 20
_size_of = os.get_terminal_size


def terminal_setting() -> dict[str, str]:
    """Return what tells workers the size of the launcher's terminal; nothing where its standard input is none.

    The user's own `EASGD_TERMINAL=80x24` gives workers a terminal where there is none, as in a batch job.
    """
    if (asked := os.environ.get(TERMINAL)) is not None:
        if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}", asked):
            raise refuse(TERMINAL, asked, "it is columns x lines, each from 1 to 9999", "write 80x24, or unset it")
        return {TERMINAL: asked}
    try:
        columns, lines = _size_of(0)  # descriptor 0: `sys.stdin` may have been replaced, as in a notebook
    except OSError:
        return {}
    columns, lines = columns or 80, lines or 24  # a terminal that was never given a size
    return {TERMINAL: f"{max(_NARROWEST, columns - _PREFIX)}x{lines}"}


def open_terminal(environment: MutableMapping[str, str]) -> None:
    """Make a new terminal this worker's standard input, if the launcher has said so in its environment."""
    size = environment.pop(TERMINAL, None)
    if size is None or sys.platform == "win32":
        return
    import termios

    columns, lines = map(int, size.split("x"))
    with contextlib.suppress(OSError):  # no terminal is left on this machine: nothing to read, as before
        _master, terminal = os.openpty()  # the other end stays open for as long as the process lives
        settings = termios.tcgetattr(terminal)
        settings[3] &= ~(termios.ICANON | termios.ECHO)
        settings[6][termios.VMIN], settings[6][termios.VTIME] = 0, 0  # a read returns what is there: nothing
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        termios.tcsetwinsize(terminal, (lines, columns))
        os.dup2(terminal, 0)
        os.close(terminal)
        os.get_terminal_size = _terminal_size


def _terminal_size(descriptor: int = 1, /) -> os.terminal_size:
    """`os.get_terminal_size`, which asks standard output: a worker's is a pipe, shown in the terminal in the end."""
    try:
        return _size_of(descriptor)
    except OSError:
        if descriptor not in (1, 2):
            raise
        return _size_of(0)
