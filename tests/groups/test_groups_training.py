"""Two groups of two ranks against the same training in one process; round-robin, so that the order is known."""

from __future__ import annotations

import pytest
import torch

import easgd
import grouping
from easgd import checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    result = easgd.run(
        grouping.train_all, workers=grouping.WORKERS, args=(str(folder),), schedule="round-robin",
        nproc_per_worker=grouping.RANKS,
    )  # fmt: skip
    assert result.exit_codes == [0] * grouping.WORKERS
    return folder, result


def left(folder, name, rank, member):
    return checkpoint.load(folder / f"{name}-{rank}-{member}")


@pytest.mark.parametrize("name", grouping.CASES)
def test_the_center_is_that_of_the_whole_model(trained, name):
    folder, result = trained
    center, _ = grouping.alone(name)
    read = [left(folder, name, rank, member)["center"] for rank in range(2) for member in range(2)]
    # The first worker reads it before the second has taken its last step; then it is the final one.
    for found in (result.centers[name], *read[2:]):
        assert found.keys() == center.keys()
        for key in center:
            torch.testing.assert_close(found[key], center[key], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", grouping.CASES)
def test_the_ranks_are_the_worker(trained, name):
    folder, _ = trained
    _, workers = grouping.alone(name)
    for rank, whole in enumerate(workers):
        ranks = [left(folder, name, rank, member)["x"] for member in range(2)]
        for key, value in whole.items():
            first, second = (x[key] for x in ranks)
            if first.shape == value.shape == second.shape:
                assert torch.equal(first, second)
                torch.testing.assert_close(first, value, atol=1e-6, rtol=0)
            else:
                dim = next(d for d in range(value.dim()) if first.shape[d] != value.shape[d])
                torch.testing.assert_close(torch.cat([first, second], dim), value, atol=1e-6, rtol=0)


def test_fsdp_shards_are_uneven_and_nothing_is_gathered(trained):
    folder, _ = trained
    rows = [left(folder, "fsdp", 0, member)["x"]["0.weight"].shape[0] for member in range(2)]
    assert rows == [4, 3]
    for member in range(2):
        calls = left(folder, "fsdp", 0, member)["calls"]
        assert calls.keys() == {"allreduce"}
        assert calls["allreduce"] < 100 * grouping.STEPS  # some numbers a step, no parameter


def test_ddp_broadcasts_one_answer_an_exchange(trained):
    folder, _ = trained
    exchanges = sum(step % 2 == 0 for step in range(grouping.STEPS))
    size = sum(p.numel() for p in grouping.net().parameters())
    assert left(folder, "ddp", 0, 0)["calls"]["broadcast"] == 4 * size * exchanges
