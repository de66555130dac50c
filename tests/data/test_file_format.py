"""The data file: what is written is read, damage is named, nothing half-written is ever found."""

import json
import os
import pickle
import signal
import subprocess
import sys
import zlib

import numpy as np
import pytest

from easgd.data import ImageFile, Writer
from easgd.data.format import MAGIC, PREFIX
from easgd.errors import SettingError


def write(path, count=20, shape=(6, 5), classes=3, channels=2, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(256, size=(count, *shape, channels), dtype=np.uint8)
    labels = rng.integers(classes, size=count)
    names = [f"c{i}" for i in range(classes)]
    with Writer(path, name="toy", split="train", classes=names, channels=channels, shape=shape) as out:
        out.add_many(images[:7], labels[:7])
        for image, label in zip(images[7:], labels[7:], strict=True):
            out.add(image, label)
    return images, labels


def test_what_is_written_is_read(tmp_path):
    images, labels = write(tmp_path / "toy.easgd")
    file = ImageFile(tmp_path / "toy.easgd")
    file.verify()
    assert len(file) == 20
    assert (file.name, file.split, file.classes, file.shape, file.channels) == (
        "toy", "train", ["c0", "c1", "c2"], (6, 5), 2
    )  # fmt: skip
    assert np.array_equal(file.images, images)
    assert np.array_equal(file.labels, labels)
    assert np.array_equal(file.image(13), images[13])
    assert os.listdir(tmp_path) == ["toy.easgd"]


def test_images_of_varying_size(tmp_path):
    rng = np.random.default_rng(1)
    images = [rng.integers(256, size=(h, w, 3), dtype=np.uint8) for h, w in [(4, 9), (7, 4), (5, 5)]]
    with Writer(tmp_path / "v.easgd", name="v", split="val", classes=["a"], channels=3, shape=None) as out:
        for image in images:
            out.add(image, 0)
    file = ImageFile(tmp_path / "v.easgd")
    file.verify()
    assert file.images is None
    assert all(np.array_equal(file.image(i), image) for i, image in enumerate(images))
    starts, heights, widths = file.places(np.array([2, 0]))
    assert (starts.tolist(), heights.tolist(), widths.tolist()) == ([(36 + 28) * 3, 0], [5, 4], [5, 9])
    file.will_need(0, 3)


def test_another_process_is_sent_the_path_not_the_images(tmp_path):
    images, _ = write(tmp_path / "toy.easgd", count=500)
    sent = pickle.dumps(ImageFile(tmp_path / "toy.easgd"))
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).images, images)


def test_the_map_cannot_be_written_through(tmp_path):
    write(tmp_path / "toy.easgd")
    with pytest.raises(ValueError, match="read-only"):
        ImageFile(tmp_path / "toy.easgd").images[0] = 0


@pytest.mark.parametrize("keep", [0, 10, 16, 100, 4096, -1])
def test_a_truncated_file_is_refused_on_opening(tmp_path, keep):
    path = tmp_path / "toy.easgd"
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    with pytest.raises(SettingError, match=r"toy\.easgd.*(bytes|not an easgd|damaged).*make it again"):
        ImageFile(path)


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "toy.easgd"
    write(path)
    data = path.read_bytes()
    header_end = data.index(b"}", data.index(b"sha256")) + 1
    used = [*range(0, header_end, 17), *range(4096, len(data), 41), len(data) - 1]
    for position in used:
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(SettingError, match=r"toy\.easgd"):
            ImageFile(path).verify()


def test_a_label_outside_the_classes_is_found(tmp_path):
    with Writer(tmp_path / "t.easgd", name="t", split="train", classes=["a"], channels=1, shape=(1, 1)) as out:
        out.add(np.zeros((1, 1, 1), np.uint8), 1)
    with pytest.raises(SettingError, match="label outside its 1 classes"):
        ImageFile(tmp_path / "t.easgd").verify()


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("executed",))


def test_a_pickle_offered_as_data_is_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.easgd").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(SettingError, match="not an easgd data file"):
        ImageFile(tmp_path / "x.easgd")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "change", [{"count": 21}, {"shape": None}, {"sections": {"images": [4096, 1200]}}, {"version": 2}]
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path, change):
    path = tmp_path / "toy.easgd"
    write(path)
    data = path.read_bytes()
    _, length, _ = PREFIX.unpack(data[: PREFIX.size])
    header = json.loads(data[PREFIX.size : PREFIX.size + length]) | change
    text = json.dumps(header).encode()
    path.write_bytes(PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text.ljust(4096 - PREFIX.size) + data[4096:])
    with pytest.raises(SettingError, match=r"toy\.easgd.*make it again"):
        ImageFile(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"nowhere\.easgd: no such file"):
        ImageFile(tmp_path / "nowhere.easgd")


def test_an_exception_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "toy.easgd"
    images, _ = write(path)

    def interrupted():
        with Writer(path, name="new", split="train", classes=["a"], channels=1, shape=(2, 2)) as out:
            out.add(np.zeros((2, 2, 1), np.uint8), 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == ["toy.easgd"]
    assert np.array_equal(ImageFile(path).images, images)


def test_an_empty_set_is_refused(tmp_path):
    with (
        pytest.raises(SettingError, match="no images"),
        Writer(tmp_path / "e.easgd", name="e", split="train", classes=["a"], channels=1, shape=(2, 2)),
    ):
        pass
    assert os.listdir(tmp_path) == []


WRITE_AND_WAIT = """
import sys, numpy as np
from easgd.data import Writer
with Writer(sys.argv[1], name="k", split="train", classes=["a"], channels=1, shape=(64, 64)) as out:
    for _ in range(50):
        out.add(np.zeros((64, 64, 1), np.uint8), 0)
    out._file.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_nothing_that_could_be_used(tmp_path):
    path = tmp_path / "k.easgd"
    child = subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    # A hidden file is left; the next writer removes it.
    assert [name.endswith(".tmp") for name in os.listdir(tmp_path)] == [True]
    write(path)
    assert os.listdir(tmp_path) == ["k.easgd"]
