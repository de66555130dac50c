"""Workers of a script that knows nothing of ranks read other batches, whatever draws them."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

import easgd
from easgd.worker import seeding

SET = TensorDataset(torch.arange(12.0))


class Drawing(IterableDataset):
    """A stream that draws with a generator of its own."""

    def __init__(self):
        self.numbers = np.random.default_rng(7)

    def __iter__(self):
        return ((torch.tensor(float(self.numbers.integers(1000))),) for _ in range(12))


def order(loader):
    return [int(i) for (batch,) in loader for i in batch]


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def attached(run_folder, monkeypatch):
    """Attach as a later incarnation: it waits for nobody."""

    def attach(rank, **settings):
        monkeypatch.setenv("EASGD_RANK", str(rank))
        monkeypatch.setenv("EASGD_WORKERS", "3")
        monkeypatch.setenv("EASGD_INCARNATION", str(int(rank > 0)))
        model = nn.Linear(1, 1)
        worker = easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), easgd.EASGD(), **settings)
        workers.append(worker)
        return model, worker

    workers = []
    monkeypatch.setattr("easgd.worker.worker.GATHER_SECONDS", 0.0)
    yield attach
    for worker in workers:
        worker.close()


def test_a_loader_that_does_not_shuffle_begins_elsewhere_while_it_trains(attached):
    model, _ = attached(2)
    loader = DataLoader(SET, batch_size=5)
    assert order(loader) == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    with torch.no_grad():
        assert order(loader) == list(range(12)), "an evaluation keeps its order"
    model.eval()
    assert order(loader) == order(DataLoader(SET, batch_size=4)) == list(range(12))
    model.train()
    assert order(DataLoader(SET, batch_size=4, num_workers=1))[0] == 8


@pytest.mark.parametrize("why", ["the first worker", "reseed=False", "a rank", "closed"])
def test_who_keeps_the_order(why, attached):
    _, worker = attached(0 if why == "the first worker" else 1, reseed=why != "reseed=False")
    if why == "a rank":
        assert worker.rank == 1
    if why == "closed":
        worker.close()
    assert order(DataLoader(SET, batch_size=4)) == list(range(12))


def test_a_rank_that_is_asked_for_to_save_a_file_leaves_the_batches_different(attached):
    model, worker = attached(1)
    loader = DataLoader(SET, batch_size=4)
    first = order(loader)
    model(torch.ones(1, 1)).sum().backward()
    worker.replica.optimizer.step()
    assert worker.rank == 1
    assert order(loader) == first != list(range(12))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_loader_with_a_generator_of_its_own_shuffles_differently(when, attached):
    def made():
        yield DataLoader(SET, batch_size=4, shuffle=True, generator=seeded())
        yield DataLoader(SET, batch_sampler=BatchSampler(RandomSampler(SET, generator=seeded()), 4, False))

    plain = [order(loader) for loader in made()]
    loaders = list(made()) if when == "before" else []
    attached(1)
    for loader, its in zip(loaders or made(), plain, strict=True):
        mine = order(loader)
        assert sorted(mine) == sorted(its)
        assert mine != its


class Seedable(RandomSampler):
    """As accelerate's: the generator is seeded anew in every epoch."""

    def __init__(self):
        super().__init__(SET, generator=torch.Generator())
        self.initial_seed, self.epoch = 5, 0

    def __iter__(self):
        self.generator.manual_seed(self.initial_seed + self.epoch)
        self.epoch += 1
        return super().__iter__()


def test_a_sampler_that_seeds_every_epoch_has_a_seed_of_its_own(attached):
    plain = DataLoader(SET, batch_size=4, sampler=Seedable())
    theirs = [order(plain) for _ in range(4)]
    attached(1)
    mine, again = (DataLoader(SET, batch_size=4, sampler=Seedable()) for _ in range(2))
    orders = [order(mine) for _ in range(4)]
    assert orders == [order(again) for _ in range(4)]
    assert not any(one in theirs for one in orders)


def test_a_stream_that_is_made_later_draws_differently(attached):
    plain = order(DataLoader(Drawing(), batch_size=4))
    attached(1)
    mine, again = (order(DataLoader(Drawing(), batch_size=4)) for _ in range(2))
    assert mine == again != plain


class Sampling:
    """An object with a generator of torch's, as trainers and batch samplers have one."""

    def __init__(self):
        self.source = {"generator": seeded()}


def test_generators_of_the_scripts_own_are_found_and_reseeded():
    def draw(rank):
        torch_, numpy_, old, plain = seeded(), np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
        set_, sampling = Drawing(), Sampling()
        seeding.reseed(rank, 0)
        drawn = torch.rand(1, generator=torch_).item(), numpy_.random(), old.rand(), plain.random()
        return (*drawn, set_.numbers.random(), torch.rand(1, generator=sampling.source["generator"]).item())

    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    first, second, again = draw(0), draw(1), draw(1)
    torch.set_rng_state(kept[0])
    np.random.set_state(kept[1])
    random.setstate(kept[2])
    assert first[:4] == (
        torch.rand(1, generator=seeded()).item(), np.random.default_rng(1).random(), np.random.RandomState(1).rand(),
        random.Random(1).random(),
    )  # fmt: skip
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert second == again, "and the same every time"
