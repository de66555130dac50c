"""Groups as actors of a Ray cluster: the same training, the same center."""

from __future__ import annotations

import pytest
import torch

import easgd
import grouping
from easgd import checkpoint

pytest.importorskip("ray")
NAMES = ("ddp", "fsdp")


@pytest.mark.heavy
def test_groups_on_ray_have_the_center_of_the_whole_model(tmp_path, shared):
    result = easgd.run(
        grouping.train_all, workers=2, engine="ray", args=(str(tmp_path), NAMES), schedule="round-robin",
        nproc_per_worker=2, out=tmp_path / "out",
    )  # fmt: skip
    assert result.exit_codes == [0, 0]
    for name in NAMES:
        center, _ = grouping.alone(name)
        read = checkpoint.load(tmp_path / f"{name}-1-1")["center"]  # by the last rank, which has no part of DDP's
        for found in (result.centers[name], read):
            assert found.keys() == center.keys()
            for key in center:
                torch.testing.assert_close(found[key], center[key], atol=1e-6, rtol=0)
