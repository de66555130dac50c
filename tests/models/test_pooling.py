"""Pooling and ReLU in one pass are torch's two, bit for bit."""

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from easgd.models.pooling import MaxPoolReLU


def images(*shape, layout=torch.channels_last, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    # Coarse numbers, so that many are equal and many are zero: then it matters which point has the gradient.
    return (x * 2).round().contiguous(memory_format=layout).requires_grad_()


def both(x, kernel=2, stride=2):
    return MaxPoolReLU(kernel, stride)(x), relu(max_pool2d(x, kernel, stride))


@pytest.mark.parametrize("shape", [(3, 5, 8, 8), (1, 64, 2, 4), (2, 1, 6, 2)])
def test_values_and_gradients_are_the_same_bits(shape):
    x = images(*shape)
    ours, theirs = both(x)
    assert torch.equal(ours, theirs)
    push = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(*(torch.autograd.grad(y, x, push)[0] for y in (ours, theirs)))


def test_by_hand():
    """Of equal points the first has the gradient; a window without a positive point gives nothing and gets nothing."""
    x = torch.tensor([[1.0, 3, -1, -2], [3, 2, -5, -1]]).view(1, 1, 2, 4).requires_grad_()
    pooled = MaxPoolReLU(2, 2)(x)
    assert pooled.flatten().tolist() == [3, 0]
    pooled.backward(torch.tensor([[[[7.0, 9.0]]]]))
    assert x.grad.flatten().tolist() == [0, 7, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("place", range(4))
def test_what_is_not_a_number_is_passed_on(place):
    x = images(1, 2, 4, 4)
    with torch.no_grad():
        x[0, 1, place // 2, place % 2] = torch.nan
    ours, theirs = both(x)
    assert ours[0, 1, 0, 0].isnan()
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)]
    assert torch.equal(*grads)


@pytest.mark.parametrize(
    ("x", "kernel", "stride"),
    [
        (images(2, 3, 7, 6), 2, 2),
        (images(2, 3, 8, 8), 3, 2),
        (images(2, 3, 8, 8, layout=torch.contiguous_format), 2, 2),
        (images(2, 3, 8, 8).detach().double().requires_grad_(), 2, 2),
    ],
)
def test_everything_else_is_left_to_torch(x, kernel, stride):
    ours, theirs = both(x, kernel, stride)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)))


def test_second_derivatives_are_right():
    x, layer = images(2, 3, 6, 6), nn.Conv2d(3, 2, 1)
    first = [torch.autograd.grad(layer(y).exp().sum(), x, create_graph=True)[0] for y in both(x)]
    second = [torch.autograd.grad(g.square().sum(), x)[0] for g in first]
    assert torch.equal(*first)
    torch.testing.assert_close(*second)
    assert second[0].abs().sum() > 0
