"""The first lines of every worker: bind its life to the launcher's, then run the user's script, module or function.

    python -m easgd.engines.local.child PARENT LIFELINE script train.py …
                                                        module package.train …
                                                        function DESCRIPTOR

No orphan may survive a killed launcher. Linux sends SIGKILL with the parent's death; elsewhere a thread reads from a
pipe that only the launcher holds open, and ends the process when it closes.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import runpy
import signal
import sys
import threading
from collections.abc import Callable

from easgd.errors import SettingError

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

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="easgd-lifeline", daemon=True).start()


def run_script(path: str, *args: str) -> None:
    """Run a script as `python path args…` does."""
    sys.argv = [path, *args]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def run_module(name: str, *args: str) -> None:
    """Run a module as `python -m name args…` does."""
    sys.argv = [name, *args]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_function(descriptor: str) -> None:
    """Call the function that the parent left in an unnamed file.

    Only the parent could write it: it is inherited, has no name, and is read by position because all workers share it.
    """
    from multiprocessing import spawn

    size = os.fstat(int(descriptor)).st_size
    parcel = io.BytesIO()
    while parcel.tell() < size:
        parcel.write(os.pread(int(descriptor), size - parcel.tell(), parcel.tell()))
    parcel.seek(0)
    spawn.prepare(pickle.load(parcel))
    try:
        function, args = pickle.load(parcel)
    except (AttributeError, ImportError) as error:
        raise SettingError(
            f"a worker cannot load the function: {error}; define it, and the classes of its arguments, in a module"
        ) from error
    function(*args)


_KINDS: dict[str, Callable[..., None]] = {"script": run_script, "module": run_module, "function": run_function}


def show(error: BaseException) -> None:
    """Print a traceback that begins in the user's code."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def main(parent: str, lifeline: str, kind: str, *rest: str) -> int:
    """Run one worker; return its exit code."""
    if sys.platform == "linux":
        follow_parent(int(parent))
    else:
        follow_pipe(int(lifeline))
    # Lines must reach the launcher when they are written, not when a buffer is full.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        # The launcher starts us with SIGINT blocked, so that an early Ctrl-C ends here and not in a traceback.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _KINDS[kind](*rest)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SettingError as error:
        print(f"easgd: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        show(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
