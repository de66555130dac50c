"""What a worker runs: the user's script, module or function, with the exit code that Python itself would give."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable

from easgd.errors import SettingError
from easgd.signals import interrupt

APART = 3
"""Exit code of a worker that went to its end, but whose last exchanges the center refused: it has diverged."""
_INTERNAL = {__file__, runpy.__file__, "<frozen runpy>"}


def run_script(path: str, *args: str) -> None:
    """Run a script as `python path args…` does, with the worker's rank in the place of `{rank}`."""
    sys.argv = [path, *map(_own, args)]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def run_module(name: str, *args: str) -> None:
    """Run a module as `python -m name args…` does, with the worker's rank in the place of `{rank}`."""
    sys.argv = [name, *map(_own, args)]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _own(argument: str) -> str:
    return argument.replace("{rank}", os.environ.get("EASGD_RANK", "0"))


class TerminatedError(BaseException):
    """SIGTERM has come: the machine is wanted for something else."""


def obey_signals() -> None:
    """Let SIGINT and SIGTERM end the target, so that its workers part from the center, and not the process at once.

    Neither breaks up a change of the center that is under way: half of it would be in no account.
    """

    def obey(number: int, frame: object) -> None:
        interrupt(KeyboardInterrupt() if number == signal.SIGINT else TerminatedError())

    signal.signal(signal.SIGINT, obey)
    signal.signal(signal.SIGTERM, obey)


def _part() -> None:
    """Bring the center what the script's workers have done; a second signal ends this too."""
    if "easgd.worker.open_workers" in sys.modules:
        from easgd.worker.open_workers import part_all

        part_all()


def exit_code(target: Callable[[], object], caller: str) -> int:
    """Call the target; print what its end has to say, and return its exit code.

    Args:
        target: what to call.
        caller: the `__file__` of the caller: tracebacks begin below it, in the user's code.
    """
    try:
        target()
    except KeyboardInterrupt:
        _part()
        return 128 + signal.SIGINT
    except TerminatedError:
        _part()
        return 128 + signal.SIGTERM
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        if end.code:
            return end.code
    except SettingError as error:
        print(f"easgd: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in {*_INTERNAL, caller}:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    try:
        return APART if _ended_apart() else 0
    except OSError as error:  # shared memory is full
        print(f"easgd: error: the model's buffers could not be left with the center: {error}", file=sys.stderr)
        return 1


def _ended_apart() -> bool:
    """Close the script's workers; whether one of them has diverged, so that the center has nothing of it."""
    if "easgd.worker.open_workers" not in sys.modules:
        return False
    from easgd.worker import open_workers

    open_workers.close_all()
    return bool(open_workers.APART)
