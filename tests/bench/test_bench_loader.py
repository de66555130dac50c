"""The loader's benchmark runs and compares like with like."""

import pytest

from easgd.bench import loader
from easgd.data import ImageFile, make_synthetic


def test_the_compared_dataset_cuts_the_same_images(tmp_path):
    samples = loader.Samples(make_synthetic(20, 32, path=tmp_path / "s.easgd"))
    file = ImageFile(tmp_path / "s.easgd")
    assert len(samples) == 20
    image, label = samples[7]
    assert image.shape == (3, 28, 28)
    assert label == file.labels[7]
    assert 0 <= image.min() < image.max() <= 1


@pytest.mark.slow
def test_rows(tmp_path, monkeypatch):
    file = ImageFile(make_synthetic(3000, 32, path=tmp_path / "s.easgd"))
    monkeypatch.setattr(loader, "_file", lambda folder: file)
    monkeypatch.setattr(loader, "ROUNDS", 1)
    monkeypatch.setattr(loader, "BATCHES", 8)
    monkeypatch.setattr(loader, "STEPS", 3)
    one, two, copy, waiting = loader.rows()
    assert one.ratio == one.value / one.reference
    assert two.value == copy.value == one.value
    assert 0 <= waiting.ratio <= 1
