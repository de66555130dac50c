"""Atomic writing, files of JSON, and the count of cores."""

from __future__ import annotations

import pytest

from easgd.files import atomic, read_json, read_json_lines, write_json
from easgd.machine import usable_cores


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with atomic(path) as scratch:
            scratch.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert path.read_text() == "old"
    with atomic(path, sync=True) as scratch:
        scratch.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_json_that_is_missing_or_broken_is_none(tmp_path):
    assert read_json(tmp_path / "none") is None
    (tmp_path / "broken").write_text("{")
    assert read_json(tmp_path / "broken") is None
    write_json(tmp_path / "whole", {"a": 1})
    assert read_json(tmp_path / "whole") == {"a": 1}


def test_json_that_is_nested_too_deeply_is_as_good_as_broken(tmp_path):
    (tmp_path / "deep").write_text("[" * 100_000 + "]" * 100_000)
    assert read_json(tmp_path / "deep") is None
    assert list(read_json_lines(tmp_path / "deep")) == []


def test_torn_lines_are_left_out(tmp_path):
    (tmp_path / "lines").write_text('{"a": 1}\n{"a"\n[2]\n{"a": 3}\n{"a": ')
    assert list(read_json_lines(tmp_path / "lines")) == [{"a": 1}, {"a": 3}]
    assert list(read_json_lines(tmp_path / "none")) == []


def test_cores_are_those_that_the_process_is_bound_to(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert usable_cores() == 3
