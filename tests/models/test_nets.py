"""The paper's networks: sizes, one initial point, and the same function as written out layer by layer."""

import copy

import pytest
import torch
import torch.nn.functional as fn
from torch import nn

from easgd.models import HE, Dropout, build, cifar, digits_conv, digits_mlp, imagenet, seed_dropout


def count(net):
    return sum(p.numel() for p in net.parameters())


def test_cifar_has_the_papers_351946_parameters():
    # 3·64·25+64, 64·128·25+128, 128·64·9+64, 64·2·2·256+256, 256·10+10
    assert [p.numel() for p in cifar().parameters()] == [4800, 64, 204800, 128, 73728, 64, 65536, 256, 2560, 10]
    assert count(cifar()) == 351_946


def test_small_nets_have_the_sizes_they_state():
    assert count(digits_conv()) == 11_146
    assert count(digits_mlp()) == 4_810


def test_biases_are_zero_and_a_tenth():
    assert all((b == 0).all() for name, b in cifar().named_parameters() if name.endswith("bias"))


def test_one_initial_point_and_the_global_generator_untouched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = cifar(), cifar(), cifar(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(next(a.parameters()), next(c.parameters()))
    weight = next(a.parameters()).detach()
    assert weight.abs().max() <= 75**-0.5
    assert weight.std() == pytest.approx((75 * 3) ** -0.5, rel=0.05)


def test_hes_gain_keeps_the_size_of_activations():
    """Weights of variance 2/fan-in: the mean square stays through rectified layers, instead of falling to a sixth."""
    notation = "(256,1)L(256,1)L(256,1)L(256,1)S(256,1)"
    x = torch.randn(200, 256, 1, 1, generator=torch.Generator().manual_seed(0))
    plain, he = (build(notation, gain=gain)(x).square().mean().item() for gain in (1.0, HE))
    assert he == pytest.approx(2.0, rel=0.3)
    assert plain == pytest.approx(2 / 6**4, rel=0.3)


def test_cifar_is_the_function_written_out_in_the_papers_order():
    """ReLU before pooling, contiguous layout, nothing in place: the same logits and gradients."""
    net = cifar(seed=3).double().eval()
    w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = [p.detach().clone().requires_grad_() for p in net.parameters()]
    images = torch.rand(4, 3, 28, 28, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 0, 9, 4])
    h = fn.max_pool2d(fn.relu(fn.conv2d(images, w1, b1)), 2)
    h = fn.max_pool2d(fn.relu(fn.conv2d(h, w2, b2)), 2)
    h = fn.relu(fn.conv2d(h, w3, b3))
    assert h.shape == (4, 64, 2, 2)
    expected = fn.linear(fn.relu(fn.linear(h.flatten(1), w4, b4)), w5, b5)
    logits = net(images)
    torch.testing.assert_close(logits, expected)
    fn.cross_entropy(expected, labels).backward()
    fn.cross_entropy(logits, labels).backward()
    torch.testing.assert_close(next(net.parameters()).grad, w1.grad)


def test_parameters_are_contiguous_so_they_pack_into_one_vector():
    assert all(p.is_contiguous() for p in cifar().parameters())


def test_imagenet_runs_forward_and_backward_at_221():
    net = imagenet()
    biases = [b for name, b in net.named_parameters() if name.endswith("bias")]
    assert len(biases) == 8
    assert all((b == 0.1).all() for b in biases)
    logits = net(torch.rand(2, 3, 221, 221))
    assert logits.shape == (2, 1000)
    fn.cross_entropy(logits, torch.tensor([0, 999])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


def test_wrong_image_size_is_named():
    with pytest.raises(ValueError, match=r"\(3, 32, 32\) for a network that takes \(3,28\)"):
        cifar()(torch.zeros(1, 3, 32, 32))


def test_dropout_repeats_from_its_seed_and_leaves_the_global_generator():
    net = cifar()
    images = torch.rand(8, 3, 28, 28)
    seed_dropout(net, 7)
    before = torch.get_rng_state()
    first, second = net(images), net(images)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    seed_dropout(net, 7)
    assert torch.equal(net(images), first)
    replica = copy.deepcopy(net)
    assert torch.equal(replica(images), second)
    assert torch.equal(net(images), second)


def test_dropout_without_a_generator_follows_manual_seed():
    layer = Dropout(0.5)
    torch.manual_seed(1)
    a = layer(torch.ones(1000))
    torch.manual_seed(1)
    assert torch.equal(layer(torch.ones(1000)), a)
    assert set(a.tolist()) == {0.0, 2.0}
    assert a.mean() == pytest.approx(1.0, abs=0.1)
    assert torch.equal(layer.eval()(torch.ones(3)), torch.ones(3))


def test_only_the_d_layers_drop_out():
    assert sum(isinstance(m, Dropout) for m in build("(1,8)L(9,1)D(7,1)D(5,1)S(2,1)").modules()) == 2
    assert not any(isinstance(m, (Dropout, nn.Dropout)) for m in digits_conv().modules())
