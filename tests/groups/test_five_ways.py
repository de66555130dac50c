"""One script of twenty lines: alone, under `easgd launch`, as groups, under torchrun and on Ray."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

SCRIPT = Path(__file__).parents[1] / "support" / "twenty_lines.py"
LAUNCH = ("-m", "easgd", "launch", "-n", "2", "--out", "runs/it")
WAYS = {
    "alone": (),
    "processes": LAUNCH,
    "groups": (*LAUNCH, "--nproc-per-worker", "2"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    "ray": (*LAUNCH, "--ray", "local"),
}


def trained(folder, way):
    folder = folder / way
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *WAYS[way], str(SCRIPT), str(folder / "center.pt")],
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{way}: {done.stderr}"
    return torch.load(folder / "center.pt", weights_only=True)


def loss_of(state):
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = x @ torch.randn(6, 3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    if state is not None:
        model.load_state_dict(state)
    return float(nn.functional.mse_loss(model(x), y).detach())


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_the_same_script_runs_in_five_ways(tmp_path, shared):
    ways = [way for way in WAYS if way != "ray" or importlib.util.find_spec("ray")]
    centers = {way: trained(tmp_path, way) for way in ways}
    before = loss_of(None)
    for way, center in centers.items():
        assert loss_of(center) < 0.7 * before, way
    # Two workers of one process each: the synchronous rounds are the same on every engine.
    for way in set(ways) & {"torchrun", "ray"}:
        for name, value in centers["processes"].items():
            torch.testing.assert_close(centers[way][name], value, atol=1e-6, rtol=0)
