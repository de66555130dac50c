"""`easgd doctor` as a user types it."""

import json
import shutil

import pytest

from easgd.bench.quick import loopback_bandwidth, memory_bandwidth
from easgd.cli import findings, main
from easgd.launch.run_directory import base, describe


@pytest.fixture
def quick(monkeypatch):
    """Measure for a moment only: what is tested is the report."""
    monkeypatch.setattr("easgd.bench.quick.memory_bandwidth", lambda: 12e9)
    monkeypatch.setattr("easgd.bench.quick.loopback_bandwidth", lambda: 2.5e9)


@pytest.fixture
def extras(monkeypatch):
    lines = ["torch>=2.7", 'ray>=2.40; extra == "ray"', 'no-such-package>=3; extra == "report"', 'ruff; extra == "dev"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)


def test_the_report_has_every_section_and_says_what_to_install(capsys, quick, extras, shared, tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "none"))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for words in ("cores", "shared memory", "12 GB/s", "2.5 GB/s", "torchrun", "iproute2", "accelerators", "torch "):
        assert words in text
    assert "pip install 'easgd[report]' brings no-such-package" in text
    assert "easgd data make digits" in text
    assert "ruff" not in text


def test_json_has_numbers(capsys, quick, extras, shared):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["measured"] == {"memory_bandwidth": 12e9, "loopback_bandwidth": 2.5e9}
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["memory"] > 1e8
    assert report["extras"]["report"] == {"no-such-package": None}
    assert any("easgd[report]" in line for line in report["advice"])


def test_bug_is_a_block_to_paste_without_the_users_home(capsys, quick, shared, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EASGD_DATA", raising=False)
    assert main(["doctor", "--bug"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("**What did you run?")
    assert text.count("```") == 2
    assert "~/.cache/easgd" in text
    assert str(tmp_path) not in text.replace(str(shared), "")


def test_a_report_is_for_people_or_for_programs(capsys):
    assert main(["doctor", "--bug", "--json"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_what_a_killed_launcher_left_is_named_and_stays(shared):
    left = base() / "train-1-dead"
    left.mkdir(parents=True)
    base().chmod(0o700)
    (left / "center").write_bytes(bytes(1000))
    alive, stale = findings.runs()
    assert (alive.value, stale.value) == ([], ["train-1-dead"])
    assert "next `easgd launch` removes" in stale.advice
    assert left.is_dir()


def test_a_run_of_another_version_is_described_by_what_we_know(tmp_path):
    (tmp_path / "owner").write_text(json.dumps({"pid": 7, "workers": 2, "out": "runs/a", "invented": True}))
    assert describe(tmp_path).workers == 2


def test_a_small_shared_memory_is_advised_on(shared, monkeypatch):
    usage = shutil.disk_usage(shared)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=64_000_000))
    found = {one.name: one for one in findings.machine()}
    assert "EASGD_SHARED" in found["shared_memory"].advice


def test_bandwidths_are_measured():
    assert memory_bandwidth(megabytes=1, seconds=0.0) > 1e6
    assert loopback_bandwidth(seconds=0.0) > 1e5
