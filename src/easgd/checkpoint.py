"""A nested state in one file: tensors as safetensors, the rest as JSON in its header. Nothing is ever unpickled.

Writing is atomic: the file appears whole, under a new name first, or not at all. A checksum over tensors and JSON is
part of the file and is verified on loading.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from easgd.errors import SettingError

FORMAT = "easgd-state-1"


def save(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write `state`: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None."""
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(state, tensors))
    header = {"format": FORMAT, "state": text, "sha256": _digest(text, tensors)}
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        try:
            save_file(tensors, scratch, metadata=header)
        except SafetensorError as error:  # how it tells of a full disk
            raise OSError(str(error)) from error
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state back, or say in one line what is wrong with the file."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError as error:
        raise SettingError(f"{path}: no such file; give the path of a saved state") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise SettingError(f"{path}: not a whole saved state ({error}); use an earlier one") from error
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


# JSON has no tensors, tuples or integer keys: those become a one-entry object under a reserved name.
def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        # A tensor of one element or none may keep strides that cannot be read as bytes: make them the plain ones.
        tensors[name] = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        return {"__tensor__": name, "shape": list(value.shape)}
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
        return tensors[value["__tensor__"]].reshape(value["shape"])
    if "__items__" in value:
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value["__items__"]}
    if "__tuple__" in value:
        return tuple(_decode(item, tensors) for item in value["__tuple__"])
    return {key: _decode(item, tensors) for key, item in value.items()}
