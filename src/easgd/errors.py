"""The one kind of error that is the user's to mend.

A `SettingError` is raised where a value enters the library, before anything has run. Its message is one line: the
value, the bound, the remedy. The command line prints that line and exits with 2; everything else is a defect and
keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SettingError(ValueError):
    """A setting, a file or an argument that cannot be used as given.

    Example:
        >>> import easgd
        >>> try:
        ...     easgd.EASGD(period=0)
        ... except easgd.SettingError as error:
        ...     print(error)
        period = 0: the communication period τ is a whole number ≥ 1, or "auto"; write period=1
    """


class NonFiniteError(ArithmeticError):
    """A worker's variable is no longer finite, and the policy is to raise.

    Example:
        >>> import torch, easgd
        >>> try:
        ...     easgd.simulate(lambda x, worker, step: x / 0, torch.ones(1), easgd.EASGD(period=1), lr=0.1, workers=2,
        ...                    steps=6, nonfinite="raise")
        ... except easgd.NonFiniteError as error:
        ...     print(error)
        worker 0, step 1: its variable is not finite; lower lr, or write nonfinite="reset"
    """


class UnreachableError(ConnectionError):
    """The center did not answer in time; the exchange is made up for when it does."""


class CenterLostError(ConnectionError):
    """The center has not answered for so long that training on alone has no sense; the weights are on disk.

    Example:
        >>> import easgd
        >>> issubclass(easgd.CenterLostError, ConnectionError)  # catch it to save more than the weights
        True
    """


class RankLostError(ConnectionError):
    """A rank of a process group did not come to an exchange of all ranks by the deadline."""


def refuse(what: str, value: object, bound: str, remedy: str) -> SettingError:
    """Build the one-line error: `what = value`, the bound it breaks, and what to write instead."""
    return SettingError(f"{what} = {value}: {bound}; {remedy}")


def unknown(what: str, value: str, known: Iterable[str]) -> SettingError:
    """Build the error for a name that is not in a list, with the nearest name that is."""
    names, shown = sorted(known), repr(value) if len(value) < 60 else f"{value[:57]!r}…"
    near = difflib.get_close_matches(value[:100], names, n=1)  # of a text without end it would look for ever
    hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
    return SettingError(f"unknown {what} {shown}: known are {', '.join(names)}; {hint}")
