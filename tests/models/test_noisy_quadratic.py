"""The noisy quadratic: its gradient, its noise, and that the noise belongs to (worker, step)."""

import pytest
import torch

from easgd.errors import SettingError
from easgd.models import Quadratic


def test_exact_gradient_by_hand():
    A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    problem = Quadratic(A, noise=0.0, optimum=torch.tensor([1.0, 0.0]))
    x = torch.tensor([2.0, 1.0], dtype=torch.float64)
    # A(x − x*) = [[2,1],[1,3]]·[1,1] = [3, 4]; ½·[1,1]·[3,4] = 3.5
    assert torch.equal(problem.gradient(x), torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert problem.loss(x) == 3.5


def test_gradient_keeps_dtype_and_shape():
    for dtype in (torch.float32, torch.float64):
        assert Quadratic(3.0).gradient(torch.ones(2, 3, dtype=dtype)).dtype == dtype
        assert Quadratic(3.0).gradient(torch.ones(2, 3, dtype=dtype)).shape == (2, 3)


def test_noise_depends_on_seed_worker_and_step_alone():
    x = torch.zeros(3, dtype=torch.float64)
    forward, backward = Quadratic(seed=4), Quadratic(seed=4)
    keys = [(worker, step) for step in (0, 1, 127, 128, 300) for worker in (0, 1, 7)]
    there = {key: forward.gradient(x, *key) for key in keys}
    back = {key: backward.gradient(x, *key) for key in reversed(keys)}
    assert all(torch.equal(there[key], back[key]) for key in keys)
    assert len({tuple(g.tolist()) for g in there.values()}) == len(keys)
    assert not torch.equal(Quadratic(seed=5).gradient(x, 0, 0), there[0, 0])


def test_noise_has_its_standard_deviation():
    x = torch.zeros(10, dtype=torch.float64)
    problem = Quadratic(noise=10.0)
    draws = torch.stack([problem.gradient(x, 0, step) for step in range(2000)])
    assert draws.std() == pytest.approx(10.0, rel=0.02)
    assert abs(draws.mean()) < 4 * 10 / 20000**0.5


@pytest.mark.parametrize(
    "bad", [{"curvature": 0.0}, {"curvature": torch.tensor([[1.0, 2.0], [2.0, 1.0]])}, {"noise": -1.0}]
)
def test_bad_problems_are_refused(bad):
    with pytest.raises(SettingError):
        Quadratic(**bad)
