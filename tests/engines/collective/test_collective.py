"""Synchronous methods under torchrun: one job of four ranks, and the simulator's synchronous rounds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call

import collective_script as script
import easgd
from easgd import checkpoint
from easgd.worker.context import RunContext
from easgd.worker.process_group import in_process_group

RANKS = 4


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*torchrun, script.__file__, str(folder)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return [checkpoint.load(folder / f"rank-{rank}") for rank in range(RANKS)]


def simulated(workers):
    """The center of the same training on the simulator, for these workers' data."""
    model = script.net()
    shapes = {n: p.shape for n, p in model.named_parameters()}

    def named(x):
        pieces = x.split([s.numel() for s in shapes.values()])
        return {n: piece.view(s) for (n, s), piece in zip(shapes.items(), pieces, strict=True)}

    def gradient(x, worker, step):
        x = x.detach().requires_grad_()
        inputs, target = script.batch(workers[worker], step)
        loss = nn.functional.mse_loss(functional_call(model, named(x), inputs), target)
        return torch.autograd.grad(loss, x)[0]

    x0 = torch.cat([p.detach().flatten() for p in model.parameters()])
    method = easgd.EASGD(period=2, moving_rate=0.2, sync=True)
    path = easgd.simulate(
        gradient, x0, method, lr=script.LR, workers=len(workers), steps=script.STEPS, schedule="sync"
    )  # fmt: skip
    return named(path.center[-1])


def close(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=0)


def test_every_rank_has_the_simulators_center(left):
    close(left[0]["hidden"], simulated(range(RANKS)))


@pytest.mark.parametrize("name", ["hidden", "blocking"])
def test_all_ranks_have_it_to_the_last_bit(left, name):
    for rank in range(1, RANKS):
        for key, value in left[0][name].items():
            assert torch.equal(left[rank][name][key], value)


def test_hiding_changes_no_bit(left):
    assert [left[0][f"hides {name}"] for name in ("hidden", "blocking")] == [True, False]
    for key, value in left[0]["hidden"].items():
        assert torch.equal(left[0]["blocking"][key], value)


@pytest.mark.parametrize("pair", [(0, 1), (2, 3)])
def test_a_process_group_is_a_run_of_its_own(left, pair):
    for place, rank in enumerate(pair):
        assert tuple(left[rank]["place"]) == (place, 2)
        close(left[rank]["pair"], simulated(pair))


def test_a_lost_rank_is_named(left):
    for rank in range(3):
        # On a busy machine another rank may be too slow as well; the lost one is named all the same.
        lost = re.fullmatch(rf"worker {rank}: rank ([\d, ]+) is lost, or too slow.*", left[rank]["lost"], re.DOTALL)
        assert lost is not None, left[rank]["lost"]
        assert "3" in lost[1].split(", ")


def test_an_asynchronous_method_is_refused(left):
    for it in left:
        assert "easgd launch -n 4" in it["refused"]
        assert "sync=True" in it["refused"]


def test_a_ddp_model_is_one_worker_alone(left):
    assert all(it["ddp alone"] for it in left)


def test_only_torchruns_whole_set_of_variables_makes_workers():
    model, alone = nn.Linear(1, 1), RunContext()
    env = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    assert in_process_group(alone, model, None, env).alone
    found = in_process_group(alone, model, None, env | {"MASTER_PORT": "1"})
    assert (found.rank, found.workers, found.run) == (1, 4, "collective:")
    launched = RunContext(run="local:/x", rank=0, workers=2, nproc=2)
    assert in_process_group(launched, model, None, env | {"MASTER_PORT": "1"}) is launched
