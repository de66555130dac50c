"""A state survives its file bit for bit, and a damaged file is refused by name."""

from __future__ import annotations

import os
import random

import pytest
import torch
from safetensors.torch import load_file

from easgd import checkpoint
from easgd.errors import SettingError

STATE = {
    "x": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "clock": torch.tensor(3),
    "nested": {"list": [1, 2.5, None], 3: ("tuple", True)},
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


def test_a_state_is_read_back(tmp_path):
    checkpoint.save(tmp_path / "state", STATE)
    assert equal(checkpoint.load(tmp_path / "state"), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_one_flipped_bit_anywhere_is_found(tmp_path):
    path = tmp_path / "state"
    checkpoint.save(path, STATE)
    data = path.read_bytes()
    bits = 8 * min(4096, len(data))
    for bit in sorted(random.Random(0).sample(range(bits), min(bits, 1500))):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = checkpoint.load(path)
        except SettingError as error:
            named = str(path) in str(error)
        else:
            named = equal(found, STATE)
        assert named, f"bit {bit}"


def test_the_checksum_covers_the_type_of_a_tensor(tmp_path):
    path = tmp_path / "state"
    checkpoint.save(path, {"x": torch.ones(2)})
    path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"I32"'))
    with pytest.raises(SettingError, match=r"int32, not torch\.float32"):
        checkpoint.load(path)


def test_tensors_that_share_memory_or_are_not_contiguous_are_saved(tmp_path):
    x = torch.arange(6.0).reshape(2, 3)
    checkpoint.save_tensors(tmp_path / "model", {"a": x, "b": x, "c": x.t()})
    read = load_file(tmp_path / "model")
    assert torch.equal(read["a"], x)
    assert torch.equal(read["b"], x)
    assert torch.equal(read["c"], x.t())


def test_a_disk_that_refuses_is_an_oserror_and_leaves_the_old_file(tmp_path, monkeypatch):
    checkpoint.save_tensors(tmp_path / "model", {"a": torch.ones(2)})

    def full(*args, **kwargs):
        raise checkpoint.SafetensorError("no space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save_tensors(tmp_path / "model", {"a": torch.zeros(2)})
    assert torch.equal(load_file(tmp_path / "model")["a"], torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_content_is_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    """Without it, a crash of the machine may leave a whole name over half a file."""
    calls = []

    def noted(real):
        return lambda *args: (calls.append(real.__name__), real(*args))

    for real in (os.fsync, os.replace):
        monkeypatch.setattr(os, real.__name__, noted(real))
    checkpoint.save(tmp_path / "state.safetensors", {"clock": 1})
    assert calls[:2] == ["fsync", "replace"]
