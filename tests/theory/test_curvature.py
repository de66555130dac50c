"""The largest Hessian eigenvalue against dense Hessians, and as a bound that gradient descent respects."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from easgd.theory import largest_curvature


def dense_top(model, loss):
    """The whole Hessian, column by column."""
    names, values = zip(*((n, p.detach()) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    sizes, shapes = [v.numel() for v in values], [v.shape for v in values]

    class Call(nn.Module):
        def __init__(self, params):
            super().__init__()
            self.params = params

        def forward(self, x):
            return torch.func.functional_call(model, self.params, (x,))

    def f(flat):
        parts = flat.split(sizes)
        return loss(Call({n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}))

    hessian = torch.autograd.functional.hessian(f, torch.cat([v.reshape(-1) for v in values]))
    return float(torch.linalg.eigvalsh(hessian)[-1])


def batch(n, features, classes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, features, generator=generator, dtype=dtype)
    return x, torch.randint(classes, (n,), generator=generator)


def test_tiny_dense_net_against_the_dense_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = batch(20, 4, 3)

    def loss(m):
        return cross_entropy(m(x), y)

    found = largest_curvature(model, loss, tolerance=1e-9)
    assert found.converged
    assert found.iterations < 51  # fewer products than parameters
    assert found.value == pytest.approx(dense_top(model, loss), rel=1e-9)
    assert found.residual <= 1e-9 * found.value


def test_quadratic_is_exact_and_negative_curvature_is_not_mistaken():
    model = nn.Linear(3, 1, bias=False).double()
    A = torch.diag(torch.tensor([-9.0, 2.0, 0.5], dtype=torch.float64))

    def loss(m):
        w = m.weight[0]
        return 0.5 * w @ A @ w

    assert largest_curvature(model, loss).value == pytest.approx(2.0, rel=1e-9)


def test_digits_nets_in_float32():
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.data[:256] / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target[:256])
    torch.manual_seed(0)
    perceptron = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    convolutional = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )
    for model in (perceptron, convolutional):

        def loss(m):
            return cross_entropy(m(x), y)

        found = largest_curvature(model, loss)
        assert found.converged
        assert found.value == pytest.approx(dense_top(model, loss), rel=2e-3)


def test_gradient_descent_diverges_just_beyond_the_bound():
    # logistic regression is convex: around its optimum descent with η = 1.9/h converges, with 2.2/h it leaves
    torch.manual_seed(1)
    x, y = batch(60, 3, 2)

    def loss(m):
        return cross_entropy(m(x), y) + 0.05 * m.weight.square().sum()

    model = nn.Linear(3, 2, bias=False).double()
    descent = torch.optim.LBFGS(model.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure():
        descent.zero_grad()
        value = loss(model)
        value.backward()
        return value

    descent.step(closure)
    optimum, h = model.weight.detach().clone(), largest_curvature(model, loss, tolerance=1e-8).value
    distance = {}
    for factor in (1.9, 2.2):
        with torch.no_grad():
            model.weight.copy_(optimum + 1e-4)
            model.weight[0, 0] += 1e-4
        optimizer = torch.optim.SGD(model.parameters(), lr=factor / h)
        for _ in range(60):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
        distance[factor] = float((model.weight - optimum).detach().norm())
    assert distance[1.9] < 1e-4 < distance[2.2]


def test_it_says_when_it_has_not_converged():
    model = nn.Linear(30, 10).double()
    x, y = batch(64, 30, 10)
    found = largest_curvature(model, lambda m: cross_entropy(m(x), y), tolerance=1e-12, iterations=2)
    assert found.iterations == 2
    assert not found.converged


def test_frozen_and_unused_parameters():
    model = nn.ModuleDict({"used": nn.Linear(2, 1, bias=False), "unused": nn.Linear(5, 5)}).double()
    found = largest_curvature(model, lambda m: m["used"].weight.square().sum() * 1.5)
    assert found.value == pytest.approx(3.0)
    model["used"].requires_grad_(False)
    model["unused"].requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameters"):
        largest_curvature(model, lambda m: m["used"].weight.sum())


def test_a_loss_that_is_not_one_number_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="one finite number"):
        largest_curvature(model, lambda m: m.weight.sum(0))


@pytest.mark.parametrize("name", ["digits_mlp", "digits_conv", "cifar"])
def test_the_papers_networks_have_a_curvature(name):
    """On the project's own networks: converged, positive, and no direction of a random sample curves more."""
    from easgd import models

    net = getattr(models, name)().eval()
    shape = net.input_shape
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, shape.channels, shape.size, shape.size, generator=generator)
    y = torch.randint(0, 10, (16,), generator=generator)

    def loss(model):
        return cross_entropy(model(x), y)

    found = largest_curvature(net, loss, tolerance=1e-2, iterations=30)
    assert found.converged
    assert found.value > 0
    params = [p for p in net.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(loss(net), params, create_graph=True)
    for seed in range(3):
        v = [torch.randn(p.shape, generator=torch.Generator().manual_seed(seed + i)) for i, p in enumerate(params)]
        norm = sum((t * t).sum() for t in v)
        product = torch.autograd.grad(gradient, params, v, retain_graph=True)
        quotient = sum((a * b).sum() for a, b in zip(product, v, strict=True)) / norm
        assert quotient.item() <= found.value * 1.01
