"""The convolution by transforms is torch's, with no larger rounding errors."""

import pytest
import torch
import torch.nn.functional as fn
from torch import nn

from easgd.models import cifar
from easgd.models.convolution import Conv2d, _matrices, transformed, worth


def problem(n, r, inputs=3, outputs=4, images=5):
    generator = torch.Generator().manual_seed(n * 100 + r)
    x = torch.randn(images, inputs, n, n, generator=generator)
    weight = torch.randn(outputs, inputs, r, r, generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), torch.randn(outputs, generator=generator, requires_grad=True)


def off(found, exact):
    return ((found - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(("n", "r"), [(12, 5), (11, 5), (7, 7), (6, 1), (3, 2), (16, 9), (2, 2)])
def test_values_and_gradients_are_those_of_a_convolution_in_double_precision(n, r):
    x, weight, bias = leaves = problem(n, r)
    exact = fn.conv2d(x.double(), weight.double(), bias.double())
    found = transformed(x, weight, bias)
    assert found.shape == exact.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert off(found, exact) < 2e-6
    push = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(found, leaves, push)
    theirs = torch.autograd.grad(exact, leaves, push.double())
    assert all(off(mine, other) < 2e-6 for mine, other in zip(ours, theirs, strict=True))


def test_rounding_is_no_worse_than_that_of_torch_on_the_papers_layer():
    x, weight, _ = problem(12, 5, inputs=64, outputs=128)
    exact = fn.conv2d(x.double(), weight.double())
    assert off(transformed(x, weight, None), exact) < 1.2 * off(fn.conv2d(x, weight), exact)


def test_one_line_worked_by_hand():
    """[[1, 2], [3, 4]] under the weights [[1, 0], [0, −1]] is 1 − 4; one number under one weight is their product."""
    x, weight = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, -1.0]]]])
    assert transformed(x, weight, None).item() == pytest.approx(-3.0, abs=1e-6)
    assert transformed(x[..., :1, :1], 2 * weight[..., :1, :1], torch.ones(1)).item() == 3.0


def test_second_derivatives_are_right():
    leaves = problem(12, 5)
    loss = [(f(*leaves).square().sum()) for f in (transformed, fn.conv2d)]
    first = [torch.autograd.grad(value, leaves[1], create_graph=True)[0] for value in loss]
    second = [torch.autograd.grad(g.square().sum(), leaves[0])[0] for g in first]
    assert off(*second) < 1e-5


def test_it_is_chosen_for_the_papers_second_layer_alone():
    convolutions = [module for module in cifar().modules() if isinstance(module, nn.Conv2d)]
    sides = [28, 12, 4]
    assert [worth(n, *c.weight.shape[:3]) for n, c in zip(sides, convolutions, strict=True)] == [False, True, False]
    assert not worth(36, 256, 96, 5)  # ImageNet's second layer: its transforms do not fit into a cache
    assert not worth(4, 64, 64, 5)  # smaller than its weights: torch says so


@pytest.mark.parametrize("settings", [{"stride": 2}, {"padding": 2}, {"dilation": 2}, {"groups": 2}])
def test_other_kinds_are_left_to_torch(settings):
    layer = Conv2d(32, 32, 5, **settings)
    plain = nn.Conv2d(32, 32, 5, **settings)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 32, 12, 12)
    assert torch.equal(layer(x), plain(x))


def test_other_precisions_are_left_to_torch(monkeypatch):
    monkeypatch.setattr("easgd.models.convolution.transformed", lambda *arguments: pytest.fail("used"))
    layer, x = Conv2d(64, 64, 5), torch.randn(2, 64, 12, 12)
    assert layer.double()(x.double()).dtype == torch.float64
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="channels"):
        layer(x[:, :3])


def test_a_first_use_without_gradients_does_not_spoil_later_ones():
    _matrices.cache_clear()
    layer, x = Conv2d(64, 64, 5), torch.randn(2, 64, 12, 12)
    with torch.inference_mode(), torch.device("meta"):
        layer(x)
    layer(x).sum().backward()
    assert layer.weight.grad.abs().sum() > 0


def test_the_papers_net_is_a_function_for_torch_func():
    """Its gradient along itself, forward over backward, is what two backward passes give."""
    net = cifar().eval()
    x, labels = torch.rand(3, 3, 28, 28, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 3])
    point = {name: p.detach() for name, p in net.named_parameters()}

    def gradient(p):
        return torch.func.grad(lambda q: fn.cross_entropy(torch.func.functional_call(net, q, (x,)), labels))(p)

    _, ours = torch.func.jvp(gradient, (point,), (point,))
    params = list(net.parameters())
    first = torch.autograd.grad(fn.cross_entropy(net(x), labels), params, create_graph=True)
    along = sum((g * p.detach()).sum() for g, p in zip(first, params, strict=True))
    theirs = torch.autograd.grad(along, params)
    for name, other in zip(point, theirs, strict=True):
        torch.testing.assert_close(ours[name], other, rtol=1e-3, atol=1e-7)
