"""Read a pickle of plain values and byte arrays, and nothing else.

A pickle is a program. This reader lets it build containers, numbers, strings and uint8 arrays; whatever else it names
is refused before it is even looked up. Not even numpy's own functions are called: arrays are recorded and rebuilt.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from easgd.data.format import Bytes
from easgd.errors import SettingError, refuse


class _Recorded:
    """Stands in for a numpy object: keeps what it was called with and the state it was given."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Recorded):
    pass


class _Dtype(_Recorded):
    pass


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes into an old pickle.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which could run code")
        return _ALLOWED[module, name]


def load_plain(data: bytes, where: object) -> Any:
    """Return the value of a pickle; raise a `SettingError` naming `where` if it holds anything but plain values."""
    try:
        return _plain(_Reader(io.BytesIO(data), encoding="bytes").load())
    except SettingError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise refuse("pickle", where, reason, "use the original file") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, _Array):
        return _array(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, not a plain value")


def _array(recorded: _Array) -> Bytes:
    _, shape, dtype, fortran, data = recorded.state
    if not isinstance(dtype, _Dtype) or dtype.arguments[0] not in ("u1", b"u1") or not isinstance(data, bytes):
        raise pickle.UnpicklingError("it holds an array of something else than bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
