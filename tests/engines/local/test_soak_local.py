"""Case 28 on one machine: random kills, stops, joiners and full disks, seeded; every exchange is accounted for."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from soaking import Soak, error_of, judge, undisturbed

SECONDS = float(os.environ.get("EASGD_SOAK_SECONDS", "60"))


def template_of(launcher: int) -> int:
    """The process that a launcher's workers are forked from."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"easgd.engines.local.template" in words and str(launcher).encode() in words:
                return int(path.parent.name)
    raise AssertionError("the launcher has no template")


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_faults(tmp_path, shared, monkeypatch):
    monkeypatch.setenv("EASGD_FORK", "1")
    calm = undisturbed(tmp_path / "calm", 40)
    soak = Soak(tmp_path / "soak")
    faults = {
        "killed workers": (30, soak.kill),
        "terminated workers": (4, soak.terminate),
        "two killed at once": (4, soak.kill_two),
        "stops": (3, soak.stop),
        "launchers that joined": (1, soak.join),
        "full disks": (1, soak.full_disk),
    }
    try:
        soak.work(0.9 * SECONDS, faults, lambda: {"launcher": soak.process.pid})
        # Without the process that workers are forked from, each is an interpreter of its own: slower, no more.
        os.kill(template_of(soak.process.pid), signal.SIGKILL)
        soak.work(0.1 * SECONDS, faults, dict)
        center = soak.finish()
        judge(soak.rows("local", SECONDS, error_of(center), calm))
    finally:
        soak.close()
    assert list(shared.iterdir()) == []
