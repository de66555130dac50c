"""`easgd bench loader`: images per second of the data pipeline, of torch's `DataLoader`, and of a plain memory copy.

All use the same file, random crops and flips, and batches of 128. They run one at a time, in turn, and the median over
rounds is reported. Then the paper's CIFAR network trains on the pipeline, to measure how long a step waits for data.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from easgd.bench import Row
from easgd.data import CIFAR10, ImageFile, Loader, load, make_synthetic
from easgd.errors import SettingError
from easgd.models import cifar

ROUNDS = 5
BATCHES = 60
STEPS = 20
Timed = Callable[[], float]


class Samples(Dataset[tuple[Tensor, int]]):
    """The usual `Dataset` for a `DataLoader`: one image at a time, from the same memory map."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: ImageFile | None = None

    def __len__(self) -> int:
        return len(ImageFile(self.path))

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if self._file is None:
            self._file = ImageFile(self.path)
        image = torch.from_numpy(self._file.image(i).copy())
        crop = CIFAR10.crop or 0
        top, left = (int(torch.randint(side - crop + 1, ())) for side in image.shape[:2])
        image = image[top : top + crop, left : left + crop].permute(2, 0, 1)
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image.float().div_(255), int(self._file.labels[i])


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = _file(Path(folder))
        calls: dict[str, Timed] = {
            "pipeline": lambda: _pipeline(file),
            "memcpy": _memcpy,
            "1 worker": lambda: _data_loader(file.path, 1),
            "2 workers": lambda: _data_loader(file.path, 2),
        }
        taken = [{name: call() for name, call in calls.items()} for _ in range(ROUNDS)]
        speed = {name: CIFAR10.batch / statistics.median(each[name] for each in taken) for name in calls}
        waited, step = _training(file)
    result = [
        Row(f"pipeline beside {other}", speed["pipeline"], "images/s", speed[key], speed["pipeline"] / speed[key])
        for key, other in (
            ("1 worker", "DataLoader with 1 worker"),
            ("2 workers", "DataLoader with 2 workers"),
            ("memcpy", "memcpy of the same bytes"),
        )
    ]
    return [*result, Row("CIFAR step: waiting for data, of the whole step", waited, "s", step, waited / step)]


def _file(folder: Path) -> ImageFile:
    """Return CIFAR-10 if this machine has it, else generated images of the same shape and number."""
    try:
        return load("cifar10")
    except SettingError:
        return ImageFile(make_synthetic(50_000, 32, path=folder / "synthetic.easgd"))


def _per_batch(batches: Iterator[Any]) -> float:
    """Return the seconds per batch after the first ten, which wait for threads and processes to start."""
    for _ in itertools.islice(batches, 10):
        pass
    begun = time.perf_counter()
    for _ in itertools.islice(batches, BATCHES):
        pass
    return (time.perf_counter() - begun) / BATCHES


def _pipeline(file: ImageFile) -> float:
    with Loader(file, CIFAR10) as loader:
        # 60 batches take only milliseconds here: the median of several timings.
        return statistics.median(_per_batch(iter(loader)) for _ in range(5))


def _data_loader(path: Path, workers: int) -> float:
    return _per_batch(iter(DataLoader(Samples(path), CIFAR10.batch, shuffle=True, num_workers=workers)))


def _memcpy() -> float:
    """Return the seconds of copying one batch of float32 pixels, over more buffers than the caches hold."""
    size = CIFAR10.crop or 0
    source = np.ones((64, CIFAR10.batch, size, size, 3), np.float32)
    target = np.zeros_like(source)
    begun = time.perf_counter()
    for one, other in zip(source, target, strict=True):
        np.copyto(other, one)
    return (time.perf_counter() - begun) / len(source)


def _training(file: ImageFile) -> tuple[float, float]:
    """Return the mean seconds that a training step waits for its batch, and that it takes as a whole."""
    net = cifar()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    waits, steps = [], []
    with Loader(file, CIFAR10) as loader:
        for _ in range(STEPS):
            begun = time.perf_counter()
            images, labels = next(loader)
            waits.append(time.perf_counter() - begun)
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            steps.append(time.perf_counter() - begun)
    # Means, because medians would hide rare long waits. The first step fills the pipeline.
    return statistics.mean(waits[1:]), statistics.mean(steps[1:])
