"""Which models are compared by their first inputs, because their gradients differ by chance."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from easgd.worker.first_gradient import FirstInputs


class Noisy(nn.Linear):
    """Dropout by a function: no module of the model says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(super().forward(x), 0.5, self.training)


def seen(model: nn.Module, *batches: torch.Tensor, after: bool = False) -> int | None:
    """The digest of a model's first forwards; with `after`, random numbers are drawn from what they return."""
    inputs = FirstInputs()
    inputs.watch(model)
    for batch in batches:
        output = model(batch)
        if after:
            torch.distributions.Categorical(logits=output).sample()
    inputs.close()
    return inputs.digest


@pytest.mark.parametrize("model", [Noisy(4, 2), nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))])
def test_a_model_that_draws_is_told_by_all_its_inputs(model):
    one, other = torch.ones(3, 4), torch.zeros(3, 4)
    assert seen(model, one) == seen(model, one) is not None
    assert seen(model, one) != seen(model, other)
    assert seen(model, one) != seen(model, one, other), "episodes may begin at one state"


@pytest.mark.parametrize(
    "model", [nn.Linear(4, 2), Noisy(4, 2).eval(), nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.0))]
)
def test_others_are_told_by_their_gradient(model):
    assert seen(model, torch.ones(3, 4)) is None


def test_actions_drawn_from_the_output_are_not_the_models():
    assert seen(nn.Linear(4, 2), torch.ones(3, 4), after=True) is None


def test_an_evaluation_is_not_looked_at():
    model, inputs = Noisy(4, 2), FirstInputs()
    inputs.watch(model)
    with torch.no_grad():
        model(torch.ones(1, 4))
    assert inputs.digest is None


def test_a_copy_of_a_watched_model_runs_and_is_not_looked_at():
    model, inputs = Noisy(4, 2), FirstInputs()
    inputs.watch(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin(torch.ones(1, 4)).shape == (1, 2)
    assert inputs.digest is None


def test_a_closed_one_leaves_no_hook():
    model = Noisy(4, 2)
    seen(model, torch.ones(1, 4))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
