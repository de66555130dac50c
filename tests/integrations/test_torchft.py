"""torchft's LocalSGD and DiLoCo against ours: the same model, data and optimizers, 200 steps.

torchft's side runs for real, each worker in a thread; its manager is a stand-in whose all-reduce is the mean over both.
Ours is the simulator with the same gradients.
"""

import os
import signal
import threading
from unittest.mock import MagicMock

import pytest
import torch

import descendants
import easgd
import problems
from easgd.bench.chaos.jobs import STOP
from easgd.bench.chaos.measure import under_torchft
from launching import until

pytest.importorskip("torchft")
from torchft.local_sgd import DiLoCo, LocalSGD

WORKERS, STEPS, PERIOD, LR = 2, 200, 10, 0.1


class Meeting:
    """All workers' tensors are averaged when the last of them has come."""

    def __init__(self, workers):
        self.tensors, self.workers = [], workers
        self.barrier = threading.Barrier(workers, timeout=60)

    def allreduce(self, rank, tensor, should_quantize=False):
        self.tensors.append((rank, tensor))
        if self.barrier.wait() == 0:
            mean = torch.stack([t for _, t in sorted(self.tensors, key=lambda pair: pair[0])]).mean(0)
            for _, t in self.tensors:
                t.copy_(mean)
            self.tensors.clear()
        self.barrier.wait()
        return MagicMock()

    def manager(self, rank):
        manager = MagicMock()
        manager._use_async_quorum = False
        manager.should_commit.return_value = True
        manager.current_step.return_value = 0
        manager.allreduce.side_effect = lambda tensor, **more: self.allreduce(rank, tensor, **more)
        return manager


def train(wrap):
    """Two workers in threads, in step through torchft's all-reduces; return each one's parameters after every step."""
    meeting, rows = Meeting(WORKERS), [[] for _ in range(WORKERS)]
    models = [problems.net() for _ in range(WORKERS)]

    def work(rank):
        model = models[rank]
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        with wrap(meeting.manager(rank), model, optimizer):
            for step in range(STEPS):
                optimizer.zero_grad()
                problems.loss(model, problems.batch(rank, step)).backward()
                optimizer.step()
                rows[rank].append(torch.cat([p.detach().flatten() for p in model.parameters()]))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.stack([torch.stack(row) for row in rows], dim=1)


def ours(method):
    gradient = easgd.ModelGradient(problems.net(), problems.loss, problems.batch)
    return easgd.simulate(gradient, gradient.x0, method, lr=LR, workers=WORKERS, steps=STEPS + 1, schedule="sync")


def compare(theirs, out):
    """torchft ends a period after its last step, we before the next one: there x is the center of the next row."""
    for t in range(1, STEPS + 1):
        mine = out.center[t + 1].expand(WORKERS, -1) if t % PERIOD == 0 else out.local[t]
        torch.testing.assert_close(theirs[t - 1], mine, rtol=0, atol=1e-6)


def test_local_sgd_is_torchfts():
    theirs = train(lambda manager, model, optimizer: LocalSGD(manager, model, optimizer, PERIOD))
    compare(theirs, ours(easgd.LocalSGD(period=PERIOD)))


OUTER = {
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.9, momentum=0.3),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05, betas=(0.9, 0.95), eps=0.1),
}


@pytest.mark.parametrize("outer", OUTER)
def test_diloco_is_torchfts(outer):
    def wrap(manager, model, optimizer):
        return DiLoCo(manager, [model], optimizer, OUTER[outer](model.parameters()), PERIOD)

    compare(train(wrap), ours(easgd.DiLoCo(period=PERIOD, outer=OUTER[outer])))


@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("delay", [0, 1])
def test_the_rule_of_streaming_diloco_is_torchfts(delay, mixing):
    """Two fragments, a constant gradient 2, inner rate 1, outer SGD of rate 2, period 6, two workers."""
    meeting, rows = Meeting(WORKERS), [[] for _ in range(WORKERS)]

    def work(rank):
        parts = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
        weights = [part.weight for part in parts]
        for start, weight in enumerate(weights):
            torch.nn.init.constant_(weight, 1.0 + start)
        manager, inner = meeting.manager(rank), torch.optim.SGD(weights, lr=1.0)
        # A manager counts the commits: they decide whose turn it is.
        manager.current_step.side_effect = lambda: manager.should_commit.call_count
        outer = [torch.optim.SGD([weight], lr=2.0) for weight in weights]
        with DiLoCo(manager, parts, inner, outer, 6, fragment_sync_delay=delay, fragment_update_alpha=mixing):
            for _ in range(30):
                for weight in weights:
                    weight.grad = torch.full_like(weight, 2.0)
                inner.step()
                rows[rank].append([weight.item() for weight in weights])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rule = descendants.streaming([1.0, 2.0], 2, 6, delay, mixing, 2.0, 1.0, 2.0, 30)
    for row in rows:
        torch.testing.assert_close(torch.tensor(row), torch.tensor(rule, dtype=torch.float32), rtol=0, atol=1e-5)


@pytest.mark.timeout(300)
def test_the_contestant_of_the_chaos_benchmark_survives_a_kill(tmp_path):
    """torchft's own lighthouse and managers: a replica is killed, is started again, and goes on with the other."""

    def reached(rank, but=()):
        found = {path.name: path.read_bytes() for path in tmp_path.glob(f"reached-{rank}-*")}
        return {name for name, clock in found.items() if clock.strip() and name not in but}

    with under_torchft(tmp_path, 2):
        first = until(lambda: reached(0) and reached(1), "both have averaged")
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
        until(lambda: reached(1, first), "it averages again")
        (tmp_path / STOP).touch()
