"""The first lines of every worker process: end with the launcher, and run the user's script, module or function.

    python -m easgd.engines.local.child PARENT LIFELINE script train.py …
                                                        module package.train …
                                                        function DESCRIPTOR

No orphan may survive a killed launcher. Linux sends SIGKILL with the parent's death; elsewhere a thread reads from a
pipe that only the launcher holds open, and ends the process when it closes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from easgd.engines.local.function import call
from easgd.groups.store import LISTEN, serve
from easgd.launch.target import exit_code, obey_signals, run_module, run_script
from easgd.launch.terminal import open_terminal

_PR_SET_PDEATHSIG = 1


def follow_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the request: then nobody will ever send the signal.
    if os.getppid() != parent:
        os._exit(1)


def follow_pipe(lifeline: int) -> None:
    """End this process when the other end of the pipe closes."""

    def read() -> None:
        while os.read(lifeline, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=read, name="easgd-lifeline", daemon=True).start()


def main(parent: str, lifeline: str, kind: str, *rest: str) -> int:
    """Run one worker; return its exit code."""
    if sys.platform == "linux":
        follow_parent(int(parent))
    else:
        follow_pipe(int(lifeline))
    # Lines must reach the launcher when they are written, not when a buffer is full.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return exit_code(partial(_run, kind, rest), __file__)


def _run(kind: str, rest: tuple[str, ...]) -> None:
    # The launcher starts us with SIGINT blocked, so that an early Ctrl-C ends here and not in a traceback.
    obey_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    open_terminal(os.environ)
    if (store := os.environ.pop(LISTEN, None)) is not None:  # the first rank of a group
        serve(int(store))
    kinds: dict[str, Callable[..., None]] = {"script": run_script, "module": run_module, "function": call}
    kinds[kind](*rest)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
