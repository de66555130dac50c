"""`easgd bench wire` on two nodes of this machine, with small messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("ray")
PROGRAM = """
import json
from easgd.bench import wire
print(json.dumps([row.as_dict() for row in wire.rows(megabytes=(4,))]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows():
    """Slow for its two nodes: each has processes of its own to start."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ, capture_output=True, text=True, timeout=280, check=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row["case"] for row in rows if row["unit"] == "GB/s"] == [
        f"4 MB, {where}, {how}" for where in ("one node", "two nodes") for how in ("sockets", "Ray's calls", "gloo")
    ]
    assert all(row["value"] > 0 for row in rows)
    assert all(abs(row["ratio"] - row["value"] / row["reference"]) < 1e-6 for row in rows)
