"""What a worker runs: the user's script, module or function, with the exit code that Python itself would give."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable

from easgd.errors import SettingError

_INTERNAL = {__file__, runpy.__file__, "<frozen runpy>"}


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


def exit_code(target: Callable[[], object], caller: str) -> int:
    """Call the target; print what its end has to say, and return its exit code.

    Args:
        target: what to call.
        caller: the `__file__` of the caller: tracebacks begin below it, in the user's code.
    """
    try:
        target()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        if end.code is not None:
            print(end.code, file=sys.stderr)
        return int(end.code is not None)
    except SettingError as error:
        print(f"easgd: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in {*_INTERNAL, caller}:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0
