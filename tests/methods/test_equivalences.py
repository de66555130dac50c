"""Methods that must coincide, and what an exchange must conserve."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import easgd

A = torch.tensor([[1.0, 0.2], [0.2, 0.4]], dtype=torch.float64)
X0 = torch.tensor([1.0, -1.0], dtype=torch.float64)


def g(x, worker, step):
    noise = torch.Generator().manual_seed(1000 * worker + step)
    return A @ x + torch.randn(2, generator=noise, dtype=torch.float64)


def run(method, **kwargs):
    kwargs = {"lr": 0.1, "workers": 3, "steps": 30, **kwargs}
    return easgd.simulate(g, X0, method, **kwargs)


@pytest.mark.parametrize("schedule", ["round-robin", "sync", "async"])
def test_eamsgd_without_momentum_is_easgd(schedule):
    ours = run(easgd.EAMSGD(period=3, beta=0.6, momentum=0.0), schedule=schedule)
    theirs = run(easgd.EASGD(period=3, beta=0.6), schedule=schedule)
    assert torch.equal(ours.center, theirs.center)
    assert torch.equal(ours.local, theirs.local)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_sequential_worker_is_torch_sgd(momentum):
    x = X0.clone()
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=momentum, nesterov=momentum > 0, weight_decay=0.05)
    for step in range(30):
        x.grad = g(x, 0, step)
        optimizer.step()
    sim = easgd.Simulation(
        g, X0, easgd.MSGD(momentum=momentum) if momentum else easgd.SGD(), lr=0.1, workers=1, weight_decay=0.05
    )
    sim.run(30)
    assert torch.equal(sim.workers[0].state.replica.read(), x)


def test_downpour_alone_with_period_one_is_sgd():
    ours = run(easgd.Downpour(period=1), workers=1)
    theirs = run(easgd.SGD(), workers=1)
    np.testing.assert_allclose(ours.local, theirs.local, rtol=0, atol=1e-13)
    # the center has what the worker had one turn ago
    np.testing.assert_allclose(ours.center[1:], theirs.center[:-1], rtol=0, atol=1e-13)


def test_a_vanishing_spring_leaves_the_workers_alone():
    ours = run(easgd.EASGD(period=1, beta=1e-14), schedule="sync")
    for worker in range(3):
        alone = easgd.simulate(lambda x, _, step, w=worker: g(x, w, step), X0, easgd.SGD(), lr=0.1, workers=1, steps=30)
        np.testing.assert_allclose(ours.local[:, worker], alone.center, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.center, X0.expand_as(ours.center), rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_round_robin_easgd_is_the_product_of_the_papers_matrices(p):
    """Section 4: state (x¹ … xᵖ, x̃), F = x²/2, map Fⁱ of the paper, composed in turn."""
    lr, alpha, steps = 0.3, 0.4, 4 * p
    state = np.full(p + 1, 2.0)
    run = easgd.simulate(
        lambda x, worker, step: x, torch.full((1,), 2.0, dtype=torch.float64),
        easgd.EASGD(period=1, moving_rate=alpha), lr=lr, workers=p, steps=steps,
    )  # fmt: skip
    for t in range(steps):
        F = np.eye(p + 1)
        i = t % p
        F[i, i], F[i, p], F[p, i], F[p, p] = 1 - lr - alpha, alpha, alpha, 1 - alpha
        state = F @ state
        np.testing.assert_allclose(run.local[t + 1, :, 0], state[:p], rtol=0, atol=1e-12)
        np.testing.assert_allclose(run.center[t + 1, 0], state[p], rtol=0, atol=1e-12)


def test_round_robin_admm_is_the_product_of_the_papers_matrices_and_unstable():
    """Section 4: state (λ¹, x¹ … λᵖ, xᵖ, x̃), maps F₃∘F₂∘F₁; η = 0.001, ρ = 2.5 from the caption of figure 1, p = 3."""
    p, lr, rho = 3, 0.001, 2.5
    run = easgd.simulate(
        lambda x, worker, step: x, torch.full((1,), 1000.0, dtype=torch.float64), easgd.ADMM(rho),
        lr=lr, workers=p, steps=300,
    )  # fmt: skip
    state, cycle = np.array([0.0, 1000.0] * p + [1000.0]), np.eye(2 * p + 1)
    for t in range(300):
        lam, x, c = 2 * (t % p), 2 * (t % p) + 1, 2 * p
        F1, F2, F3 = np.eye(2 * p + 1), np.eye(2 * p + 1), np.eye(2 * p + 1)
        F1[lam, x], F1[lam, c] = -1, 1
        F2[x, [lam, x, c]] = np.array([lr * rho, 1 - lr, lr * rho]) / (1 + lr * rho)
        F3[c] = np.array([-1 / p, 1 / p] * p + [0])
        state = F3 @ F2 @ F1 @ state
        cycle = F3 @ F2 @ F1 @ cycle if t < p else cycle
        np.testing.assert_allclose(run.local[t + 1, :, 0], state[1:-1:2], rtol=1e-12)
        np.testing.assert_allclose(run.center[t + 1, 0], state[c], rtol=1e-12)
    assert np.abs(np.linalg.eigvals(cycle)).max() > 1.0009


@settings(max_examples=40, deadline=None)
@given(
    p=st.integers(1, 5),
    settings=st.sampled_from([(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 1), (4, 2, 3), (6, 2, 5)]),
    beta=st.floats(0.01, 0.99),
    schedule=st.sampled_from(["round-robin", "sync", "async"]),
    seed=st.integers(0, 1000),
)
def test_an_elastic_exchange_conserves_the_sum(p, settings, beta, schedule, seed):
    """d leaves the worker and enters the center: without gradients Σxⁱ + x̃ never changes."""
    period, fragments, delay = settings
    sim = easgd.Simulation(
        lambda x, worker, step: torch.zeros_like(x), X0,
        easgd.EASGD(period=period, beta=beta, fragments=fragments, delay=delay), lr=0.1, workers=p, schedule=schedule,
        seed=seed, cost=easgd.CostModel(latency=0.9),
    )  # fmt: skip
    for rank, worker in enumerate(sim.workers):
        worker.state.replica.write_(X0 + rank)

    def total():
        # An answer under way has left the center's side already: it is still to be taken from the worker.
        out = sum(worker.state.local() for worker in sim.workers) + sim.center.x
        for flight in (flight for worker in sim.workers for flight in worker.in_flight if flight.answer is not None):
            a, b = sim.center.bounds[flight.fragment]
            out[a:b] -= flight.answer
        return out

    before = total()
    sim.run(25)
    np.testing.assert_allclose(total(), before, rtol=0, atol=1e-11)


def test_any_optimizer_runs_under_any_method():
    for method in (easgd.EASGD(period=2), easgd.Downpour(period=2), easgd.ADMM(1.0), easgd.EAMSGD(period=2)):
        out = run(method, optimizer=lambda params: torch.optim.Adam(params, lr=0.05))
        assert out.center.isfinite().all()
        assert not torch.equal(out.center[0], out.center[-1])


def test_float32_stays_float32():
    out = easgd.simulate(lambda x, w, s: x, torch.ones(2), easgd.EASGD(period=1), lr=0.1, workers=2, steps=4)
    assert out.center.dtype == out.local.dtype == torch.float32
