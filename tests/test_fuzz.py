"""Bytes from a wire or a file, made up or damaged: each parser says that they are wrong, and does no more.

Every example is small and bounded in time; what would take memory in proportion to a number that is merely claimed is
refused before.
"""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import easgd
from easgd import checkpoint
from easgd.compress import Codec
from easgd.data.format import ImageFile
from easgd.engines.ray.messages import Reply, Request
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.sockets import REPLY, REQUEST
from easgd.errors import SettingError
from easgd.faults import load_plan
from easgd.records import parse
from easgd.training.config import Config

N = 64
numbers = st.integers(0, 2**32 - 1)
requests = st.builds(
    Request, st.just("center"), numbers | st.integers(0, 3), numbers, st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 255) | st.integers(0, 5), st.floats(), st.integers(0, 3) | numbers, st.floats(),
)  # fmt: skip
messages = (
    st.none()
    | st.binary(min_size=1, max_size=4 * N + 8)
    | st.sampled_from([2 * N, N, N // 2 + 4]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
)


@pytest.mark.parametrize("codec", ["float32", "bf16", "int8"])
@given(packed=st.binary(max_size=400), n=st.integers(0, 100))
def test_packed_bytes_of_another_size_are_refused(codec, packed, n):
    kind, data = Codec.named(codec), torch.tensor(list(packed), dtype=torch.uint8)
    if len(packed) == kind.bytes(n):
        assert kind.decode(data, n).numel() == n
        return
    with pytest.raises(ValueError, match=f"{n} elements"):
        kind.decode(data, n)
    with pytest.raises(ValueError, match=f"{n} elements"):
        kind.decode_add_(data, torch.zeros(n))


@settings(deadline=None)
@given(asked=st.lists(st.tuples(requests, messages), max_size=6), codec=st.sampled_from([None, "bf16", "int8"]))
def test_no_request_brings_a_shard_out_of_order(asked, codec):
    """Also of somebody who knows the secret: a message of another size is refused, x̃ stays finite, memory bounded."""
    method = easgd.EASGD(moving_rate=0.5, fragments=2)
    shard = Shard(method, codec, method.center_slots(torch.zeros(N)), [(0, N // 2), (N // 2, N)], guard=30.0)
    for request, message in asked:
        packed = None if message is None else torch.tensor(list(message), dtype=torch.uint8)
        try:
            reply, _ = shard.exchange(request._replace(kind=0 if request.kind in (3, 4) else request.kind), packed)
        except ValueError:
            continue
        assert packed is None or packed.numel() == shard.codec.bytes(N // 2)
        assert REPLY.pack(b"EAS2", *reply, 0)
    assert shard.center.x.isfinite().all()
    assert all(len(guard.table) < 10_000_000 for guard in shard.center.guards)


@given(st.binary(max_size=100))
def test_heads_are_of_one_size_or_no_heads(data):
    for head, kind in ((REQUEST, Request), (REPLY, Reply)):
        if len(data) >= head.size:
            assert len(head.unpack(data[: head.size])) >= len(kind._fields)
        else:
            with pytest.raises(struct.error):
                head.unpack(data)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_a_record_is_a_record_or_none(line):
    parse(line)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["event", "worker", "clock", "time", "method", "workers", "period", "settings", "fault", "seed"]
)


@given(st.dictionaries(names | st.text(max_size=5), values, max_size=5))
def test_data_of_wrong_types_is_refused_in_one_line(data):
    parse(json.dumps(data))
    with contextlib.suppress(SettingError):
        Config.from_dict(data)


@settings(deadline=None)
@given(text=st.text(max_size=200) | st.binary(max_size=200), suffix=st.sampled_from(["toml", "json"]))
def test_a_file_of_settings_is_settings_or_refused_in_one_line(tmp_path_factory, text, suffix):
    path = tmp_path_factory.getbasetemp() / f"fuzz.{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="replace"))
    for load in (Config.load, load_plan):
        with contextlib.suppress(SettingError):
            load(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "state"
    checkpoint.save(path, {"x": torch.arange(4.0), "clock": 3, "list": [1, (2, None)]})
    return path.read_bytes()


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_checkpoint_is_refused(whole, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged"
    at = data.draw(st.integers(0, len(whole) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=20))
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    path.write_bytes(damaged)
    if damaged == whole:
        return
    # The length of a header may claim exabytes: it is refused before they are asked for.
    try:
        state = checkpoint.load(path)
    except SettingError:
        return
    assert torch.equal(state["x"], torch.arange(4.0)), "what is read is what was saved"


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_made_up_data_files_are_refused(tmp_path_factory, noise):
    path = tmp_path_factory.getbasetemp() / "set.easgd"
    path.write_bytes(noise)
    with contextlib.suppress(SettingError):
        ImageFile(path)
