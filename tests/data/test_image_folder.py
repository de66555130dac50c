"""Image folders: sizes, grey images, files that are no images, and that converting streams."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from easgd.data import Loader, Scheme, load, make_folder
from easgd.errors import SettingError


def picture(path, width, height, mode="RGB", value=None, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    pixels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    if value is not None:
        pixels[:] = value
    Image.fromarray(pixels, mode).save(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "home"))
    root = tmp_path / "photos"
    for label, name in enumerate(("cat", "dog")):
        for i in range(12):
            picture(root / "train" / name / f"{i}.png", 40 + i, 30, value=100 * label + i)
        for i in range(3):
            picture(root / "val" / name / f"{i}.jpg", 20, 50, value=100 * label)
    return root


def test_the_shorter_side_is_resized_and_the_longer_kept(photos):
    made = make_folder(photos, size=24)
    assert [(m.path.name, m.count, m.bad) for m in made] == [
        ("photos-train.easgd", 24, []), ("photos-test.easgd", 6, [])
    ]  # fmt: skip
    train, test = load("photos"), load("photos", "test")
    train.verify()
    test.verify()
    assert train.classes == test.classes == ["cat", "dog"]
    sizes = {train.image(i).shape for i in range(24)}
    assert sizes == {(24, round((40 + i) * 24 / 30), 3) for i in range(12)}
    assert {test.image(i).shape for i in range(6)} == {(60, 24, 3)}


def test_images_keep_their_labels_in_a_shuffled_order(photos):
    make_folder(photos, size=24)
    train = load("photos")
    values = [int(train.image(i)[0, 0, 0]) for i in range(24)]
    assert [value // 100 for value in values] == train.labels.tolist()
    assert sorted(values) == [*range(12), *range(100, 112)]
    # no run of one class as long as a folder would give
    assert "0" * 10 not in "".join(map(str, train.labels))
    first = load("photos").path.read_bytes()
    make_folder(photos, size=24)
    assert load("photos").path.read_bytes() == first
    make_folder(photos, size=24, seed=1)
    assert load("photos").labels.tolist() != train.labels.tolist() or load("photos").path.read_bytes() != first


def test_square_images_are_the_middle(photos):
    picture(photos / "train" / "cat" / "wide.png", 64, 24, seed=5)
    make_folder(photos, size=24, square=True)
    train = load("photos")
    assert train.shape == (24, 24)
    middle = np.asarray(Image.open(photos / "train" / "cat" / "wide.png"))[:, 20:44]
    assert any(np.array_equal(train.images[i], middle) for i in range(25))


def test_grey_palette_and_transparent_images_become_rgb(photos):
    picture(photos / "train" / "cat" / "grey.png", 30, 30, mode="L", value=77)
    Image.new("RGBA", (30, 30), (10, 20, 30, 255)).save(photos / "train" / "cat" / "clear.png")
    Image.new("RGB", (30, 30), (200, 0, 50)).convert("P").save(photos / "train" / "dog" / "palette.gif")
    Image.new("CMYK", (30, 30)).save(photos / "train" / "dog" / "print.jpg")
    assert make_folder(photos, size=24)[0].count == 28
    train = load("photos")
    corners = {tuple(train.image(i)[0, 0].tolist()) for i in range(28)}
    assert {(77, 77, 77), (10, 20, 30)} <= corners


def test_a_file_that_is_no_image_is_named_and_counted(photos):
    (photos / "train" / "dog" / "notes.jpg").write_text("this is text")
    whole = (photos / "val" / "cat" / "0.jpg").read_bytes()
    (photos / "train" / "cat" / "half.jpg").write_bytes(whole[: len(whole) // 2])
    picture(photos / "train" / "cat" / "strip.png", 3000, 1)
    (photos / "train" / "cat" / "readme.txt").write_text("not even named like an image")
    train = make_folder(photos, size=24)[0]
    assert train.count == 24
    named = sorted(line.split("photos/")[1].split(":")[0] for line in train.bad)
    assert named == ["train/cat/half.jpg", "train/cat/strip.png", "train/dog/notes.jpg"]
    assert all("\n" not in line for line in train.bad)


@pytest.mark.parametrize("where", ["train", "val"])
def test_by_choice_it_is_an_error_and_nothing_is_written(photos, where):
    (photos / where / "dog" / "notes.jpg").write_text("this is text")
    with pytest.raises(SettingError, match=r"notes\.jpg.*--bad skip"):
        make_folder(photos, size=24, bad="error")
    assert os.listdir(photos.parent / "home") == []


def test_layouts_that_cannot_be_meant_are_refused(photos, tmp_path):
    (photos / "train" / "empty").mkdir()
    with pytest.raises(SettingError, match=r"train/empty: it has no images"):
        make_folder(photos)
    (photos / "train" / "empty").rmdir()
    picture(photos / "val" / "fox" / "0.png", 30, 30)
    with pytest.raises(SettingError, match=r"val/fox: the training set has no such class"):
        make_folder(photos)
    with pytest.raises(SettingError, match="no such folder"):
        make_folder(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(SettingError, match="no class folders"):
        make_folder(tmp_path / "bare")
    with pytest.raises(SettingError, match="size = 0"):
        make_folder(photos, size=0)
    with pytest.raises(SettingError, match="bad = maybe"):
        make_folder(photos, bad="maybe")
    assert not (tmp_path / "home").exists()


def test_classes_without_splits_are_a_training_set(photos):
    made = make_folder(photos / "train", name="flat", size=24)
    assert [m.path.name for m in made] == ["flat-train.easgd"]


def test_a_loader_cuts_batches_of_varying_images(photos):
    make_folder(photos, size=24)
    with Loader(load("photos"), Scheme(batch=6, loaders=4, chunk=3, shards=True, crop=21, flip=True)) as loader:
        images, labels = next(loader)
    assert images.shape == (6, 3, 21, 21)
    # flat images: the value tells the class
    assert ((images[:, 0, 0, 0] * 255).round().long() // 100).tolist() == labels.tolist()


STREAM = """
import sys
from easgd.data import make_folder
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
make_folder(sys.argv[2], name="warm", size=8)
before = peak()
make_folder(sys.argv[1], name="big", size=400)
print(peak() - before)
"""


def test_converting_streams(photos, tmp_path, monkeypatch):
    """150 images of 480 KB make 72 MB; the converter's memory grows by a third of that at most."""
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "home"))
    picture(tmp_path / "big" / "train" / "a" / "0.png", 400, 400, value=3)
    for i in range(1, 150):
        os.link(tmp_path / "big" / "train" / "a" / "0.png", tmp_path / "big" / "train" / "a" / f"{i}.png")
    command = [sys.executable, "-c", STREAM, tmp_path / "big", photos]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (tmp_path / "home" / "big-train.easgd").stat().st_size > 72e6
    assert float(run.stdout) < 24


def test_decoding_runs_only_a_few_images_ahead(photos):
    from easgd.data.folder import _decoded, _Picture

    pulled = []

    def endless():
        while True:
            pulled.append(1)
            yield _Picture(photos / "train" / "cat" / "0.png", 0)

    images = _decoded(endless(), 24, False, threads=2)
    for taken in range(1, 30):
        next(images)
        assert len(pulled) <= taken + 8
    images.close()
