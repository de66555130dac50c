"""Ready batches: the same whatever the threads, resumed exactly, through the map and not into memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from easgd.data import DIGITS, Loader, Sampler, Scheme, evaluation, load, make_synthetic
from easgd.data.prefetch import Prefetcher
from easgd.errors import SettingError

SCHEME = Scheme(batch=20, loaders=3, chunk=16, crop=10, flip=True)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path))
    make_synthetic(count=300, size=12, classes=4)
    return load("synthetic")


def take(loader, n):
    return [next(loader) for _ in range(n)]


def same(a, b):
    return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True))


def test_batches_have_the_schemes_form(file):
    with Loader(file, SCHEME) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (20, 3, 10, 10)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    assert 0 <= images.min() < images.max() <= 1
    assert loader.batches_per_epoch == 15


def test_labels_belong_to_their_images(file):
    """Each image, cut whole, is the file's, and so is its label."""
    with Loader(file, Scheme(batch=20, loaders=3, chunk=16), seed=4) as loader:
        rows = Sampler(300, loader.scheme, seed=4)
        for images, labels in take(loader, 30):
            numbers = rows.next()
            pixels = torch.from_numpy(file.images[numbers].astype(np.float32) / 255).permute(0, 3, 1, 2)
            assert torch.equal(images, pixels)
            assert labels.tolist() == file.labels[numbers].tolist()


def test_threads_do_not_change_what_comes_out(file):
    runs = []
    for ahead, threads in [(0, 1), (4, 1), (7, 3)]:
        with Loader(file, SCHEME, seed=9, ahead=ahead, threads=threads) as loader:
            runs.append(take(loader, 60))
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


def test_seeds_and_workers_differ(file):
    with Loader(file, SCHEME) as a, Loader(file, SCHEME, seed=1) as b, Loader(file, SCHEME, worker=1) as c:
        assert not torch.equal(next(a)[0], next(b)[0])
        assert not torch.equal(next(a)[0], next(c)[0])


@pytest.mark.parametrize("ahead", [0, 5])
@pytest.mark.parametrize("done", [0, 1, 37])
def test_resume_continues_with_the_next_batch(file, ahead, done):
    with Loader(file, SCHEME, ahead=ahead) as loader:
        take(loader, done)
        state = {key: value.clone() for key, value in loader.state_dict().items()}
        expected = take(loader, 25)
    with Loader(file, SCHEME, ahead=3) as fresh:
        fresh.load_state_dict(state)
        # a checkpoint right after a resume says the same again
        again = fresh.state_dict()
        assert all(torch.equal(again[key], state[key]) for key in state)
        assert same(take(fresh, 25), expected)


def test_workers_of_one_process_resume_together(file):
    def loaders():
        sampler = Sampler(len(file), SCHEME)
        return [Loader(file, SCHEME, worker=w, sampler=sampler) for w in range(3)]

    first, second = loaders(), loaders()
    for step in range(50):
        next(first[step % 3])
    states = [loader.state_dict() for loader in first]
    for loader, state in zip(second, states, strict=True):
        loader.load_state_dict(state)
    for step in range(60):
        assert same([next(first[step * 2 % 3])], [next(second[step * 2 % 3])])
    for loader in first + second:
        loader.close()


def test_an_error_on_a_thread_reaches_the_caller():
    def make(plan):
        if plan == 2:
            raise OSError("disk gone")
        return plan

    numbers = iter(range(9))
    prefetcher = Prefetcher(lambda: next(numbers), make, ahead=3, threads=2)
    assert [prefetcher.next(), prefetcher.next()] == [0, 1]
    with pytest.raises(OSError, match="disk gone"):
        prefetcher.next()
    prefetcher.close()


def test_a_sampler_of_other_data_is_refused(file):
    with pytest.raises(SettingError, match="other data"):
        Loader(file, SCHEME, sampler=Sampler(299, SCHEME))


def test_evaluation_is_the_whole_set_once_in_order(file):
    batches = list(evaluation(file, crop=10, batch=70))
    assert [len(labels) for _, labels in batches] == [70, 70, 70, 70, 20]
    assert torch.cat([labels for _, labels in batches]).tolist() == file.labels.tolist()
    center = file.images[299, 1:11, 1:11].astype(np.float32) / 255
    assert torch.equal(batches[-1][0][-1], torch.from_numpy(center).permute(2, 0, 1))
    assert sum(len(labels) for _, labels in evaluation(file, batch=70, limit=100)) == 100


def test_digits_come_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "new"))
    train, test = load("digits"), load("digits", "test")
    train.verify()
    test.verify()
    assert (len(train), len(test), train.shape, train.channels) == (1433, 364, (8, 8), 1)
    assert np.bincount(test.labels).min() >= 35
    assert train.images.max() == 255
    with Loader(train, DIGITS) as loader:
        assert next(loader)[0].shape == (32, 1, 8, 8)


def test_an_unknown_set_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path))
    with pytest.raises(SettingError, match=r"data set = cifar10: not found.*easgd data make cifar10"):
        load("cifar10")


MEMORY = """
import sys
from easgd.data import ImageFile, Loader, Scheme
def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024
file = ImageFile(sys.argv[1])
loader = Loader(file, Scheme(batch=64, loaders=4, chunk=64, crop=56, flip=True))
for _ in range(5):
    next(loader)
before = held()
for _ in range(3 * loader.batches_per_epoch):
    next(loader)
file.verify()
print(held() - before)
"""


def test_the_process_does_not_hold_the_set(tmp_path, monkeypatch):
    """120 MB are read three times over; the process's own memory grows by less than a fifth of it."""
    monkeypatch.setenv("EASGD_DATA", str(tmp_path))
    path = make_synthetic(count=10_000, size=64)
    assert path.stat().st_size > 120e6
    run = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, timeout=60, check=True)
    assert float(run.stdout) < 24
