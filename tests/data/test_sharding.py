"""The user's own DataLoader, in each worker's own order."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip

from easgd.data import shard
from easgd.errors import SettingError
from processes import FRESH

DATA = TensorDataset(torch.arange(50))


def epoch(loader):
    return [batch[0].tolist() for batch in loader]


def flat(batches):
    return [i for batch in batches for i in batch]


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_worker_sees_the_entire_set_in_its_own_order(shuffle):
    loader = DataLoader(DATA, batch_size=8, shuffle=shuffle)
    orders = [flat(epoch(shard(loader, rank, 3))) for rank in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert all(order != sorted(order) for order in orders)


def test_the_order_depends_on_seed_rank_and_epoch_alone():
    loader = DataLoader(DATA, batch_size=8)
    torch.manual_seed(0)
    a = shard(loader, 1, 2, seed=3)
    first, second = epoch(a), epoch(a)
    torch.manual_seed(99)
    b = shard(loader, 1, 2, seed=3)
    assert [epoch(b), epoch(b)] == [first, second]
    assert first != second
    assert epoch(shard(loader, 1, 2, seed=4)) != first


def test_the_users_settings_stay():
    def collate(rows):
        return ("mine", [int(row[0]) for row in rows])

    sharded = shard(DataLoader(DATA, batch_size=8, drop_last=True, collate_fn=collate), 0, 2)
    batches = list(sharded)
    assert len(sharded) == len(batches) == 6
    assert all(tag == "mine" and len(rows) == 8 for tag, rows in batches)
    assert sharded.batch_size == 8
    assert sharded.dataset is DATA


def test_without_batches():
    sharded = shard(DataLoader(DATA, batch_size=None, shuffle=True), 0, 2)
    rows = [int(row[0]) for row in sharded]
    assert len(sharded) == 50
    assert sorted(rows) == list(range(50)) != rows


def test_random_samplers_keep_their_kind():
    subset = shard(DataLoader(DATA, batch_size=4, sampler=SubsetRandomSampler([1, 5, 9])), 0, 2)
    assert sorted(flat(epoch(subset))) == [1, 5, 9]
    weights = [0.0] * 49 + [1.0]
    weighted = shard(DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler(weights, 6)), 0, 2)
    assert flat(epoch(weighted)) == [49] * 6
    plain = shard(DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 8, True)), 0, 2)
    assert [len(batch) for batch in epoch(plain)] == [8] * 6


def test_the_users_sampler_is_left_alone():
    sampler = RandomSampler(DATA)
    list(shard(DataLoader(DATA, sampler=sampler), 0, 2))
    assert sampler.generator is None


@pytest.mark.parametrize("done", [0, 3, 7, 10])
def test_resume_continues_with_the_next_batch(done):
    loader = DataLoader(DATA, batch_size=8)  # 7 batches an epoch
    a = shard(loader, 0, 2)
    stream = (batch for _ in range(4) for batch in epoch_lazily(a))
    for _ in range(done):
        next(stream)
    state = a.state_dict()
    expected = [next(stream)[0].tolist() for _ in range(10)]
    b = shard(loader, 0, 2)
    b.load_state_dict(state)
    resumed = (batch for _ in range(4) for batch in epoch_lazily(b))
    assert [next(resumed)[0].tolist() for _ in range(10)] == expected


def epoch_lazily(loader):
    yield from loader


def test_an_iteration_left_early_is_followed_by_the_next_epoch():
    loader = DataLoader(DATA, batch_size=8)
    a, b = shard(loader, 0, 2), shard(loader, 0, 2)
    next(iter(a))
    epoch(b)
    assert epoch(a) == epoch(b)


class Double(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return i, torch.rand(())  # an augmentation, drawn in the loader's own process


def test_worker_processes_repeat_and_differ_between_workers():
    loader = DataLoader(Double(), batch_size=5, num_workers=1, multiprocessing_context=FRESH)
    a, b, c = ([(i.tolist(), x.tolist()) for i, x in shard(loader, rank, 2)] for rank in (0, 0, 1))
    assert a == b
    assert {x for _, xs in a for x in xs}.isdisjoint({x for _, xs in c for x in xs})


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_a_stream_is_refused_to_several_and_passed_to_one():
    loader = DataLoader(Numbers(), batch_size=4)
    with pytest.raises(SettingError, match=r"Numbers.*same for 2 workers.*rank"):
        shard(loader, 0, 2)
    alone = shard(loader, 0, 1)
    assert [batch.tolist() for batch in alone] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    next(iter(alone))
    again = shard(loader, 0, 1)
    again.load_state_dict(alone.state_dict())
    assert [batch.tolist() for batch in again] == [[4, 5, 6, 7], [8, 9]]


class Odd(BatchSampler):
    pass


def test_orders_that_cannot_be_changed_are_refused():
    with pytest.raises(SettingError, match="batch_sampler = Odd"):
        shard(DataLoader(DATA, batch_sampler=Odd(SequentialSampler(DATA), 4, False)), 0, 2)
    distributed = DistributedSampler(DATA, num_replicas=2, rank=0)
    with pytest.raises(SettingError, match="sampler = DistributedSampler"):
        shard(DataLoader(DATA, sampler=distributed), 0, 2)
    with pytest.raises(SettingError, match=r"rank = 2.*0\.\.1"):
        shard(DataLoader(DATA), 2, 2)
