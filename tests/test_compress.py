"""The codecs: what is lost, what is counted, and that nothing piles up."""

from __future__ import annotations

import pytest
import torch

import easgd
from easgd.compress import BLOCK, NAMES, Codec, DeltaCodec, ErrorFeedback

SIZES = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3]


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


@pytest.mark.parametrize("n", SIZES)
def test_the_error_is_half_a_level_of_the_block(n):
    x, codec = vector(n), Codec.named("int8")
    error = (codec.decode(codec.encode(x), n) - x).abs()
    for start in range(0, n, BLOCK):
        block = slice(start, start + BLOCK)
        assert error[block].max() <= 0.5001 * x[block].abs().max() / 127


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
    x = vector(2 * BLOCK)
    x[5] = bad
    codec = Codec.named(name)
    out = codec.decode(codec.encode(x), x.numel())
    assert not out[5].isfinite()
    assert out[BLOCK:].isfinite().all()


@pytest.mark.parametrize("value", [0.0, 1e-40, -1e-38, 3e38])
def test_extreme_blocks(value):
    codec = Codec.named("int8")
    x = torch.full((10,), value)
    out = codec.decode(codec.encode(x), 10)
    assert (out - x).abs().max() <= max(1e-30, abs(value) / 200)


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
    assert memory.rest.abs().max() < 4 * one, "one rounding is owed, not fifty"


@pytest.mark.parametrize("name", NAMES)
def test_following_converges_to_a_still_value_and_both_ends_agree(name):
    n, codec = 3000, Codec.named(name)
    start, x = vector(n, 1), vector(n, 2)
    sender, receiver = DeltaCodec(codec, start), DeltaCodec(codec, start)
    for _ in range(8):
        got = receiver.decode(sender.encode(x))
        assert torch.equal(got, sender.value)
    torch.testing.assert_close(got, x, rtol=1e-6, atol=1e-5)


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
