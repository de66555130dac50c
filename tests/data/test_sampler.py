"""The paper's sampling: chunks in order, restarts near the start, nothing lost, the same again from the same seed."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from easgd.data import CIFAR10, IMAGENET, Sampler, Scheme
from easgd.data.cursors import Cursors, Ring
from easgd.data.sampler import rings
from easgd.errors import SettingError


def logged(count, scheme, seed=0, **kwargs):
    chunks = []
    return Sampler(count, scheme, seed=seed, on_chunk=chunks.append, **kwargs), chunks


def test_the_schemes_are_the_papers():
    assert (CIFAR10.batch, CIFAR10.loaders, CIFAR10.chunk, CIFAR10.shards, CIFAR10.crop) == (128, 8, 512, False, 28)
    assert (IMAGENET.batch, IMAGENET.loaders, IMAGENET.chunk, IMAGENET.shards, IMAGENET.crop) == (128, 8, 64, True, 221)


def test_a_loader_by_hand():
    """10 images, chunks of 4, batch 3: 0-4, 4-8, 8-10, then a restart in [0, 10 mod 3 = 1]."""
    cursors = Cursors([Ring(0, 10, 0)], chunk=4, batch=3, seed=0)
    first = [cursors.take(0) for _ in range(3)]
    assert [(c.cycle, c.first, c.last) for c in first] == [(0, 0, 4), (0, 4, 8), (0, 8, 10)]
    starts = []
    for cycle in range(1, 400):
        chunk = cursors.take(0)
        assert chunk.cycle == cycle
        starts.append(chunk.first)
        while chunk.last < 10:
            following = cursors.take(0)
            assert (following.cycle, following.first) == (cycle, chunk.last)
            chunk = following
    assert set(starts) == {0, 1}
    assert 150 < sum(starts) < 250


def test_loaders_spread_over_the_set_or_divide_it():
    assert [(r.first, r.size, r.start) for r in rings(10, Scheme(loaders=4))] == [
        (0, 10, 0), (0, 10, 2), (0, 10, 5), (0, 10, 7)
    ]  # fmt: skip
    parts = rings(10, Scheme(loaders=4, shards=True))
    assert [(r.first, r.size, r.start) for r in parts] == [(0, 2, 0), (2, 3, 0), (5, 2, 0), (7, 3, 0)]


def test_a_worker_takes_one_chunk_from_each_loader_and_shuffles_them_together():
    sampler, chunks = logged(1000, Scheme(batch=16, loaders=4, chunk=20))
    batches = [sampler.next() for _ in range(5)]
    assert [c.loader for c in chunks] == [0, 1, 2, 3]
    served = np.concatenate([np.arange(c.first, c.last) for c in chunks])
    assert sorted(np.concatenate(batches)) == sorted(served)
    # 80 = 5 batches of 16; each holds images of several chunks, in no order
    assert all(len({int(i) // 250 for i in batch}) >= 3 for batch in batches)
    sampler.next()
    assert [c.loader for c in chunks[4:]] == [0, 1, 2, 3]


def test_the_next_asker_gets_the_next_chunk():
    sampler, chunks = logged(1000, Scheme(batch=10, loaders=2, chunk=50))
    sampler.next(worker=0)
    sampler.next(worker=1)
    assert [(c.loader, c.first) for c in chunks] == [(0, 0), (1, 500), (0, 50), (1, 550)]


ODD = [
    # images, batch, loaders, chunk, workers
    (1000, 128, 8, 512, 4),
    (997, 10, 3, 7, 5),
    (503, 64, 8, 5, 1),
    (100, 7, 2, 33, 9),
    (64, 64, 1, 64, 3),
    (50, 128, 4, 512, 2),
]


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize(("count", "batch", "loaders", "chunk", "workers"), ODD)
def test_no_chunk_twice_in_a_cycle_and_nothing_lost(count, batch, loaders, chunk, workers, shards):
    scheme = Scheme(batch=batch, loaders=loaders, chunk=chunk, shards=shards)
    sampler, chunks = logged(count, scheme)
    order = np.random.default_rng(0).integers(workers, size=30 * count // batch + 30)
    dealt = [sampler.next(int(worker)) for worker in order]
    assert {len(rows) for rows in dealt} == {batch}

    for loader, ring in enumerate(rings(count, scheme)):
        for cycle, mine in itertools.groupby((c for c in chunks if c.loader == loader), key=lambda c: c.cycle):
            spans = [(c.first - ring.first, c.last - ring.first) for c in mine]
            start = spans[0][0]
            assert start == ring.start if cycle == 0 else 0 <= start <= min(ring.size % batch, ring.size - 1)
            assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))  # one after the other, none twice
            assert all(0 < last - first <= chunk for first, last in spans)
            assert spans[-1][1] <= ring.size

    # every served image was dealt once, or waits in a pool: nothing lost, nothing invented
    served = Counter(int(i) for c in chunks for i in range(c.first, c.last))
    state = sampler.state_dict()
    waiting = [state[key].numpy() for key in state if key.endswith(".pool")]
    seen = Counter(np.concatenate([*dealt, *waiting]).tolist())
    assert seen == served


@pytest.mark.parametrize("shards", [False, True])
def test_over_many_epochs_every_image_is_used_alike(shards):
    """A pass uses each image once, but the i-th of the first s of a file only with chance (i + 1)/(s + 1)."""
    count, batch, loaders, epochs = 1100, 32, 4, 300
    sampler = Sampler(count, Scheme(batch=batch, loaders=loaders, chunk=37, shards=shards), seed=1)
    used = np.zeros(count, int)
    for i in range(epochs * count // batch):
        np.add.at(used, sampler.next(i % 3), 1)
    files = loaders if shards else 1
    s = count // files % batch
    chance = np.tile(np.minimum(np.arange(count // files) + 1, s + 1) / (s + 1), files)
    expected = chance / chance.sum() * epochs * count
    rim = expected < expected.max() * 0.999
    # Away from the rim the count is exact but for the pass under way in each loader; at the rim it is random.
    assert np.abs(used - expected)[~rim].max() <= loaders + 2
    assert np.abs(used - expected)[rim].max() < 5 * np.sqrt(epochs / 4 + loaders)
    assert used[rim].sum() < expected.max() * rim.sum()


def test_an_epoch_of_spread_loaders_is_each_image_once():
    """k loaders at jN/k meet each other's starts after N/k images each: N/batch batches hold every image once."""
    sampler = Sampler(1024, Scheme(batch=64, loaders=4, chunk=32))
    rows = np.concatenate([sampler.next(i % 2) for i in range(1024 // 64)])
    assert sorted(rows) == list(range(1024))


def test_same_seed_and_requests_same_batches():
    scheme = Scheme(batch=30, loaders=3, chunk=17)
    requests = np.random.default_rng(2).integers(4, size=300)
    a, b, c = Sampler(500, scheme, seed=5), Sampler(500, scheme, seed=5), Sampler(500, scheme, seed=6)
    deals = [[s.next(int(worker)) for worker in requests] for s in (a, b, c)]
    assert all(np.array_equal(x, y) for x, y in zip(deals[0], deals[1], strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(deals[0], deals[2], strict=True))


def test_resume_continues_with_the_next_batch():
    scheme = Scheme(batch=30, loaders=3, chunk=17)
    sampler = Sampler(500, scheme)
    for i in range(101):
        sampler.next(i % 3)
    state = {key: value.clone() for key, value in sampler.state_dict().items()}
    expected = [sampler.next(i % 4) for i in range(200)]
    fresh = Sampler(500, scheme)
    fresh.load_state_dict(state)
    assert all(np.array_equal(fresh.next(i % 4), rows) for i, rows in enumerate(expected))
    # the same object can go back, too
    sampler.load_state_dict(state)
    assert np.array_equal(sampler.next(0), expected[0])
    assert all(value.dtype == torch.int64 for value in state.values())


def test_a_state_of_other_settings_is_refused():
    state = Sampler(500, Scheme(batch=30)).state_dict()
    with pytest.raises(SettingError, match=r"batch.*resume with the settings"):
        Sampler(500, Scheme(batch=31)).load_state_dict(state)


@pytest.mark.parametrize("bad", [{"batch": 0}, {"loaders": 0}, {"chunk": -1}, {"crop": 0}])
def test_bad_schemes_are_refused(bad):
    with pytest.raises(SettingError, match=f"{next(iter(bad))} = "):
        Scheme(**bad)


def test_fewer_images_than_shards_are_refused():
    with pytest.raises(SettingError, match="use fewer loaders"):
        Sampler(7, Scheme(loaders=8, shards=True))
