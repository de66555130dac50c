"""Files are followed from where the last reading ended."""

from __future__ import annotations

import builtins

from easgd.files import parse_json_line
from easgd.training.tail import Tail


def test_only_what_was_added_is_read(tmp_path, monkeypatch):
    tail = Tail(tmp_path, "rows-*.jsonl", parse_json_line)
    assert list(tail.read()) == []
    a, b = tmp_path / "rows-a.jsonl", tmp_path / "rows-b.jsonl"
    a.write_text('{"n": 1}\n{"n": 2}\n')
    assert list(tail.read()) == [{"n": 1}, {"n": 2}]
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", None)  # nothing is new: the file is not even opened
        assert list(tail.read()) == []
    with a.open("a") as file:
        file.write('{"n": 3}\n{"n"')  # the second line is not finished
    b.write_text('{"n": 9}\n')
    assert list(tail.read()) == [{"n": 3}, {"n": 9}]
    with a.open("a") as file:
        file.write(": 4}\nnot JSON\n")
    assert list(tail.read()) == [{"n": 4}]


def test_what_is_there_can_be_skipped(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n')
    tail = Tail(tmp_path, "rows.jsonl", parse_json_line)
    tail.skip()
    with path.open("a") as file:
        file.write('{"n": 2}\n')
    assert list(tail.read()) == [{"n": 2}]
