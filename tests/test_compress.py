"""The codecs: what is lost, what is counted, and that nothing piles up."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import easgd
from easgd.compress import BLOCK, NAMES, Codec, DeltaCodec, ErrorFeedback
from easgd.compress.topk import BLOCK as PLACES

SIZES = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3, PLACES, PLACES + 50]


def vector(n: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=g) * torch.logspace(-4, 2, n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", [None, *NAMES])
def test_bytes_are_what_is_counted(name, n):
    codec = Codec.named(name)
    packed = codec.encode(vector(n))
    assert packed.dtype == torch.uint8
    assert packed.numel() == codec.bytes(n)
    assert codec.decode(packed, n).shape == (n,)


def test_int8_moves_a_quarter_of_the_bytes():
    assert Codec.named("int8").bytes(1 << 20) == (1 << 20) + 4 * 1024
    assert Codec.named("bf16").bytes(1 << 20) == 2 << 20


def test_int8_by_hand():
    """max|x| = 254, so scale = 2 and the codes are x/2 rounded: 127, -1, 0 (0.5 to even), 1."""
    x = torch.tensor([254.0, -2.5, 1.0, 2.0])
    codec = Codec.named("int8")
    packed = codec.encode(x)
    assert packed[4:].view(torch.int8).tolist() == [127, -1, 0, 1]
    assert codec.decode(packed, 4).tolist() == [254.0, -2.0, 0.0, 2.0]


def test_int4_by_hand():
    """max|x| = 14, so scale = 2 and the codes 7, -1 | 0, 1 | -7 plus 8: two in a byte, the first in the lower half."""
    x = torch.tensor([14.0, -2.5, 1.0, 2.0, -14.0])
    codec = Codec.named("int4")
    packed = codec.encode(x)
    assert packed[:4].view(torch.float32).item() == 2.0
    assert packed[4:].tolist() == [15 + 16 * 7, 8 + 16 * 9, 1]
    assert codec.decode(packed, 5).tolist() == [14.0, -2.0, 0.0, 2.0, -14.0]


def test_int2_by_hand():
    """Root mean square √(82/5) ≈ 4: 5 and -7 are large, mean 6; the others small, mean 4/3. Bits: negative, large."""
    x = torch.tensor([5.0, -2.0, -7.0, 2.0, 0.0])
    codec = Codec.named("int2")
    packed = codec.encode(x)
    assert packed[:8].view(torch.float32).tolist() == pytest.approx([4 / 3, 6])
    assert packed[8:].tolist() == [0b00_11_10_01, 0]
    assert codec.decode(packed, 5).tolist() == pytest.approx([6, -4 / 3, -6, 4 / 3, 4 / 3])


def test_topk_by_hand():
    """80 elements, two are sent: -254 at 3 and the first of two equal 9s at 7; scale 2, so 9 is sent as 4·2."""
    x = torch.full((80,), 0.5)
    x[3], x[7], x[70] = -254.0, 9.0, -9.0
    codec = Codec.named("topk")
    packed = codec.encode(x)
    assert packed[:4].view(torch.float32).item() == 2.0
    assert packed[4:8].tolist() == [3, 0, 7, 0]
    assert packed[8:].view(torch.int8).tolist() == [-127, 4]
    out = codec.decode(packed, 80)
    assert (out[3].item(), out[7].item(), out.count_nonzero().item()) == (-254.0, 8.0, 2)
    rest = x.clone()
    codec.encode_rest_(rest)
    assert (rest[3].item(), rest[7].item(), rest[70].item()) == (0.0, 1.0, -9.0)


@pytest.mark.parametrize("n", [*SIZES, 3 * PLACES + 999])
def test_topk_sends_the_largest_of_every_block(n):
    x, codec = vector(n), Codec.named("topk")
    sent = codec.decode(codec.encode(x), n) != 0
    for start in range(0, n, PLACES):
        block = slice(start, start + PLACES)
        magnitude = x[block].abs()
        kept = max(1, magnitude.numel() // 40)
        assert sent[block].sum() <= kept
        least = magnitude.topk(kept).values.min()
        # An element below half a level of the block's largest is sent as 0.
        assert torch.equal(sent[block], (magnitude >= least) & (magnitude > magnitude.max() / 254))


@pytest.mark.parametrize(("name", "factor"), [("int4", 7.93), ("int2", 15.51), ("topk", 53.2)])
def test_fewer_bytes_by_the_factor_that_is_said(name, factor):
    n, codec = 25_000_000, Codec.named(name)
    assert factor < 4 * n / codec.bytes(n) < factor * 1.01
    if name == "topk":
        assert all(4 * n >= 50 * codec.bytes(n) for n in (1000, 10_000, PLACES, 100_000, 1_000_000))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
def test_the_error_is_half_a_level_of_the_block(n, name, levels):
    x, codec = vector(n), Codec.named(name)
    error = (codec.decode(codec.encode(x), n) - x).abs()
    for start in range(0, n, BLOCK):
        block = slice(start, start + BLOCK)
        assert error[block].max() <= 0.5001 * x[block].abs().max() / levels


magnitudes = st.floats(-(2.0**60), 2.0**60, width=32)
VECTORS = st.lists(st.one_of(magnitudes, st.just(0.0), st.floats(-1, 1, width=32)), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(VECTORS)
@pytest.mark.parametrize("name", NAMES)
def test_what_rounding_takes_is_less_than_what_was_there(name, values):
    """‖x − Q(x)‖ ≤ ‖x‖ for any x: what is carried from message to message cannot grow by itself."""
    x, codec = torch.tensor(values), Codec.named(name)
    out = codec.decode(codec.encode(x), x.numel())
    assert out.isfinite().all()
    assert (out.double() - x.double()).norm() <= (1 + 1e-6) * x.double().norm() + 1e-30


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=64), st.integers(0, 120))
@pytest.mark.parametrize("name", [None, *NAMES])
def test_any_bytes_are_refused_or_are_a_vector_of_the_right_length(name, data, n):
    """The length must be exactly right, so a decoder reads and allocates what the receiver knows, whoever sends."""
    codec, to = Codec.named(name), torch.ones(n)
    packed = torch.tensor(list(data), dtype=torch.uint8)
    if len(data) != codec.bytes(n):
        with pytest.raises(ValueError, match="bytes: "):
            codec.decode(packed, n)
        with pytest.raises(ValueError, match="bytes: "):
            codec.decode_add_(packed, to)
        assert torch.equal(to, torch.ones(n))
    else:
        with contextlib.suppress(ValueError):
            assert codec.decode(packed, n).shape == (n,)


@pytest.mark.parametrize("places", [[5, 5], [7, 3], [3, 80], [65535, 3]])
def test_places_that_no_encoder_makes_are_refused_before_anything_is_added(places):
    codec, to = Codec.named("topk"), torch.zeros(80)
    packed = codec.encode(torch.ones(80))
    packed[4:8].view(torch.int16).copy_(torch.tensor(places, dtype=torch.int32).to(torch.int16))
    with pytest.raises(ValueError, match="ascending"):
        codec.decode_add_(packed, to)
    assert not to.any()


def test_float32_and_bf16_are_exact_where_they_can_be():
    x = vector(100)
    plain = Codec.named(None)
    assert torch.equal(plain.decode(plain.encode(x), 100), x)
    half = x.to(torch.bfloat16).float()
    codec = Codec.named("bf16")
    assert torch.equal(codec.decode(codec.encode(half), 100), half)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_is_not_hidden(name, bad):
    block = PLACES if name == "topk" else BLOCK
    x = vector(2 * block)
    x[5] = bad
    codec = Codec.named(name)
    out = codec.decode(codec.encode(x), x.numel())
    assert not out[5].isfinite()
    assert out[block:].isfinite().all()


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "topk"])
@pytest.mark.parametrize("value", [0.0, 1e-40, -1e-38, 3e38])
def test_extreme_blocks(value, name):
    codec = Codec.named(name)
    x = torch.full((10,), value)
    out = codec.decode(codec.encode(x), 10)
    error = (out - x).abs()
    assert (error.min() if name == "topk" else error.max()) <= max(1e-30, abs(value) / 200)


@pytest.mark.parametrize("name", NAMES)
def test_feedback_sends_in_the_sum_what_was_meant(name):
    n, codec = 3000, Codec.named(name)
    memory = ErrorFeedback(codec, n)
    meant, sent = torch.zeros(n), torch.zeros(n)
    for k in range(50):
        x = vector(n, k)
        meant += x
        sent += codec.decode(memory.encode(x), n)
    torch.testing.assert_close(sent + memory.rest, meant, rtol=1e-5, atol=1e-3)
    one = (codec.decode(codec.encode(x), n) - x).abs().max()
    owed = {"int2": 10, "topk": 25}.get(name, 4)  # topk sends every element once in forty times
    assert memory.rest.abs().max() < owed * one, "one rounding is owed, not fifty"


@pytest.mark.parametrize("name", NAMES)
def test_following_converges_to_a_still_value_and_both_ends_agree(name):
    n, codec = 3000, Codec.named(name)
    start, x = vector(n, 1), vector(n, 2)
    sender, receiver = DeltaCodec(codec, start), DeltaCodec(codec, start)
    for _ in range({"int4": 20, "int2": 250, "topk": 250}.get(name, 8)):
        got = receiver.decode(sender.encode(x))
        assert torch.equal(got, sender.value)
    torch.testing.assert_close(got, x, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", ["int4", "int2", "topk"])
def test_a_position_whose_answers_are_expected_is_followed_by_both_ends(name):
    """The sender subtracts every answer: what is left to send is its own movement alone."""
    n, codec = 2000, Codec.named(name)
    x = vector(n)
    sender, receiver = DeltaCodec(codec, x), DeltaCodec(codec, x)
    for k in range(20):
        x = x + 1e-3 * vector(n, k)
        d = 0.5 * receiver.decode(sender.encode(x))
        x = x - d
        for end in (sender, receiver):
            end.expect_(d)
        assert torch.equal(sender.value, receiver.value)
    assert (x - receiver.value).norm() < 0.02 * vector(n).norm()


@pytest.mark.parametrize("name", NAMES)
def test_the_rest_is_what_rounding_took(name):
    codec, x = Codec.named(name), vector(2500)
    rest = x.clone()
    packed = codec.encode_rest_(rest)
    assert torch.equal(packed, codec.encode(x))
    torch.testing.assert_close(rest, x - codec.decode(packed, 2500), rtol=0, atol=1e-5)


def test_an_unknown_codec_is_refused():
    with pytest.raises(easgd.SettingError, match="did you mean 'int8'"):
        Codec.named("int9")
