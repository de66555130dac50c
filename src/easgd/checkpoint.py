"""A nested state in one file: tensors as safetensors, the rest as JSON in its header. Nothing is ever unpickled.

Writing is atomic. A checksum over the tensors' bytes and the JSON, which holds their dtypes and shapes, is part of the
file and is verified on loading.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from easgd.errors import SettingError
from easgd.files import atomic

FORMAT = "easgd-state-1"


def save_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor]) -> None:
    """Write a state dict as plain safetensors, atomically; OSError if the disk does not take it."""
    # safetensors refuses tensors that share memory or are not contiguous.
    copies = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    _write(path, copies)


def save(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write `state`: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(state, tensors))
    _write(path, tensors, {"format": FORMAT, "state": text, "sha256": _digest(text, tensors)})


def _write(path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> None:
    with atomic(path, sync=True) as scratch:
        try:
            save_file(tensors, scratch, metadata=header)
        except SafetensorError as error:  # for instance a full disk
            raise OSError(str(error)) from error


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state back; SettingError, naming the file, if it is missing or damaged in any way."""
    try:
        return _load(path)
    except SettingError:
        raise
    except FileNotFoundError as error:
        raise SettingError(f"{path}: no such file; give the path of a saved state") from error
    except Exception as error:  # a damaged header can fail anywhere: in safetensors, in JSON, in a lookup
        raise SettingError(f"{path}: not a whole saved state ({error}); use an earlier one") from error


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if header.get("format") != FORMAT:
        raise SettingError(f"{path}: format {header.get('format')!r}, expected {FORMAT!r}; it was not saved by easgd")
    if header["sha256"] != _digest(header["state"], tensors):
        raise SettingError(f"{path}: its checksum does not match, the file is damaged; use an earlier one")
    state: dict[str, Any] = _decode(json.loads(header["state"]), tensors)
    return state


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# JSON has no tensors, tuples or integer keys: those become an object under a reserved name.
def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        # A tensor of one element or none may keep strides that cannot be read as bytes: make them the plain ones.
        tensors[name] = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        return {"__tensor__": name, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _encode(item, tensors) for key, item in value.items()}
        return {"__items__": [[_encode(k, tensors), _encode(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"__tuple__": [_encode(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_encode(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state cannot hold a {type(value).__name__}: {value!r}")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "__tensor__" in value:
        tensor = tensors[value["__tensor__"]]
        if value.get("dtype", str(tensor.dtype)) != str(tensor.dtype):  # files of earlier versions have no dtype here
            raise ValueError(f"tensor {value['__tensor__']} is {tensor.dtype}, not {value['dtype']}")
        return tensor.reshape(value["shape"])
    if "__items__" in value:
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value["__items__"]}
    if "__tuple__" in value:
        return tuple(_decode(item, tensors) for item in value["__tuple__"])
    return {key: _decode(item, tensors) for key, item in value.items()}
