"""torch's `PeriodicModelAverager` on two gloo ranks equals LocalSGD."""

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import easgd
import problems
from easgd import checkpoint

WORKERS, STEPS, PERIOD = 2, 23, 5


def average(rank, folder):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORKERS)
    model = problems.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=PERIOD - 1)  # it counts from 0, after the step
    for step in range(STEPS):
        optimizer.zero_grad()
        problems.loss(model, problems.batch(rank, step)).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    checkpoint.save(f"{folder}/rank-{rank}", {"x": list(model.parameters())})
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
def test_local_sgd_is_torchs_periodic_model_averager(tmp_path):
    multiprocessing.spawn(average, (str(tmp_path),), WORKERS)
    gradient = easgd.ModelGradient(problems.net(), problems.loss, problems.batch)
    out = easgd.simulate(
        gradient, gradient.x0, easgd.LocalSGD(period=PERIOD), lr=0.1, workers=WORKERS, steps=STEPS, schedule="sync"
    )
    for rank in range(WORKERS):
        theirs = torch.cat([p.flatten() for p in checkpoint.load(tmp_path / f"rank-{rank}")["x"]])
        torch.testing.assert_close(out.local[-1, rank], theirs, rtol=0, atol=1e-6)
