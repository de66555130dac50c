"""Read a pickle of plain values and uint8 arrays, and nothing else.

A pickle is a program. `pickle.Unpickler` runs all of it: it imports what the file names, and a file of a hundred bytes
can make it allocate gigabytes. So this module interprets the few instructions that plain values need by itself and
refuses the others. No name is looked up and no function of numpy is called: arrays are recorded, then rebuilt.

A file of N bytes costs O(N) time and memory. Every instruction costs O(1) plus the bytes of its argument, the memo is a
dictionary (the unpickler's is an array as long as the largest number in the file), keys are strings (hashing a nested
tuple can take exponential time), and the result is a tree: no list, tuple or dictionary stands in two places.
"""

from __future__ import annotations

import pickletools
from pickle import UnpicklingError
from typing import Any

import numpy as np

from easgd.data.format import Bytes
from easgd.errors import refuse

# A batch of CIFAR-10 has 31 million bytes, about 30,000 instructions and a depth of 2.
LARGEST = 1 << 27
MOST_INSTRUCTIONS = 1 << 20
DEEPEST = 32

_NUMBERS = ("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT")
_TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_IS_ARGUMENT = frozenset((*_NUMBERS, *_TEXTS))  # the value is the instruction's argument
_NEW = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SMALL_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name:
    """A global of the pickle; equal names are one object."""


class _Recorded:
    """A numpy object: what it was called with and the state it was given."""

    def __init__(self, kind: _Name, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments = kind, arguments
        self.state: Any = None


_ARRAY, _NDARRAY, _DTYPE, _ENCODE = _Name(), _Name(), _Name(), _Name()
_ALLOWED = {
    "numpy.core.multiarray _reconstruct": _ARRAY,
    "numpy._core.multiarray _reconstruct": _ARRAY,
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _DTYPE,
    "_codecs encode": _ENCODE,  # how Python 3 writes bytes into an old pickle
}


def load_plain(data: bytes, where: object) -> Any:
    """Return the value of a pickle; raise a `SettingError` naming `where` if it holds anything but plain values.

    Plain are None, bool, int, float, str, bytes, uint8 arrays, and lists, tuples and dictionaries of them with
    str or bytes for keys. Strings of Python 2 become bytes.

    >>> import pickle
    >>> load_plain(pickle.dumps({"labels": [3, 7]}), "batch")
    {'labels': [3, 7]}
    """
    try:
        if len(data) > LARGEST:
            raise UnpicklingError(f"it has {len(data)} bytes, at most {LARGEST} are read")
        return _plain(_Machine(len(data)).run(data), set(), 0)
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise refuse("pickle", where, reason, "use the original file") from None


class _Machine:
    """The stack, the marks on it and the memo, as `pickletools` documents them."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.left_to_encode = size

    def run(self, data: bytes) -> Any:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number == MOST_INSTRUCTIONS:
                raise UnpicklingError(f"it has more than {MOST_INSTRUCTIONS} instructions")
            if opcode.name == "STOP":
                return self.stack.pop()
            if opcode.name in _IS_ARGUMENT:
                self.stack.append(argument)
            else:
                self._execute(opcode.name, argument)
        raise UnpicklingError("it has no end")

    def _execute(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self.memo
        match name:
            case "PROTO" | "FRAME":
                pass
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                self.marks.append(len(stack))
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument.encode("latin1"))
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append(_NEW[name]())
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append(_CONSTANTS[name])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._since(len(stack) - _SMALL_TUPLES[name])))
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "LIST":
                stack.append(self._since_mark())
            case "DICT":
                items = self._since_mark()
                stack.append({})
                self._update(items)
            case "APPEND" | "APPENDS":
                items = self._since(len(stack) - 1) if name == "APPEND" else self._since_mark()
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                self._update(self._since(len(stack) - 2) if name == "SETITEM" else self._since_mark())
            case "GLOBAL" | "STACK_GLOBAL":
                asked = argument if name == "GLOBAL" else " ".join(self._since(len(stack) - 2))
                if asked not in _ALLOWED:
                    raise UnpicklingError(f"it asks for {asked.replace(' ', '.')}, which could run code")
                stack.append(_ALLOWED[asked])
            case "REDUCE":
                function, arguments = self._since(len(stack) - 2)
                stack.append(self._call(function, arguments))
            case "BUILD":
                (state,) = self._since(len(stack) - 1)
                self._top(_Recorded).state = state
            case _:
                raise UnpicklingError(f"its instruction {name} is not needed for plain values")

    def _since(self, start: int) -> list[Any]:
        if start < 0:
            raise UnpicklingError("its stack is empty")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _since_mark(self) -> list[Any]:
        return self._since(self.marks.pop())

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise UnpicklingError(f"it changes a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def _update(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if not all(isinstance(key, (str, bytes)) for key in keys):
            raise UnpicklingError("it has a key that is no string")
        self._top(dict).update(zip(keys, values, strict=True))

    def _call(self, function: Any, arguments: Any) -> Any:
        if function is _ENCODE:
            text, encoding = arguments
            if encoding != "latin1":
                raise UnpicklingError(
                    "it has bytes that are not in latin1"
                )  # no repr: of a nested tuple it may not end
            # One text in the memo could be encoded again and again: N² bytes of a file of N.
            self.left_to_encode -= len(text)
            if self.left_to_encode < 0:
                raise UnpicklingError("its strings are longer than the file")
            return text.encode("latin1")
        if function not in (_ARRAY, _DTYPE):
            raise UnpicklingError("it calls what is no function")
        return _Recorded(function, arguments)


def _plain(value: Any, seen: set[int], depth: int) -> Any:
    """Return a copy with arrays in place of their records. `seen` has the ids of the containers met so far."""
    if isinstance(value, (dict, list, tuple)):
        # What stands in two places may double at every level: 65 bytes then make 2²⁰ values. () is always one object.
        if value and (id(value) in seen or depth == DEEPEST):
            raise UnpicklingError(f"it repeats a container, or is more than {DEEPEST} deep")
        seen.add(id(value))
        if isinstance(value, dict):
            return {key: _plain(item, seen, depth + 1) for key, item in value.items()}
        return type(value)(_plain(item, seen, depth + 1) for item in value)
    if isinstance(value, _Recorded) and value.kind is _ARRAY:
        return _array(value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise UnpicklingError("it holds a function or a type, not a plain value")


def _array(recorded: _Recorded) -> Bytes:
    _, shape, dtype, fortran, data = recorded.state
    if not isinstance(dtype, _Recorded) or dtype.arguments[0] not in ("u1", b"u1") or not isinstance(data, bytes):
        raise UnpicklingError("it holds an array of something else than bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
