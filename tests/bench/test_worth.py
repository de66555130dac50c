"""The worth of a worker: both ends of its scale, and runs that are not repeated."""

import pytest
import torch

from easgd.bench import worth
from easgd.bench.worth.jobs import JOBS, Job
from easgd.bench.worth.runs import Records, Setting, run
from easgd.bench.worth.summary import shares, write


class Line(Job):
    """A line through noise; data-parallel training sees less of the noise."""

    name, title, unit, lr = "line", "A line", "loss", 0.1

    def __init__(self, seed):
        super().__init__(torch.nn.Linear(3, 1), lambda model, batch: (model(batch[0]) - batch[1]).square().mean(), seed)

    def batch(self, worker, step):
        draw = torch.Generator().manual_seed(1000 * worker + step + self.seed)
        x = torch.randn(4, 3, generator=draw)
        return x, x.sum(1, keepdim=True) + torch.randn(4, 1, generator=draw)

    def optimizer(self, params, lr):
        return torch.optim.AdamW(params, lr=lr)

    def _measure(self, model):
        return float((model.weight - 1).square().sum() + model.bias.square().sum())


def setting(method, steps=60, **options):
    return Setting("line", 2, method, options, steps=steps)


def test_one_worker_that_averages_every_step_with_itself_is_one_process():
    torch.manual_seed(0)
    job = Line(0)
    alone = run(setting("alone"), job)
    ddp = run(setting("ddp"), job)
    # p equal workers, averaged after every step: with their own batches, between both ends
    local = run(setting("localsgd", period=1), job)
    assert alone["bytes"] == 0
    assert ddp["bytes"] == 60 * 8 * 4, "a ring of two sends and receives the vector once a step"
    assert local["bytes"] == 60 * 8 * 4
    assert ddp["value"] < alone["value"]
    assert local["value"] < alone["value"]


def test_a_result_that_is_there_is_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setitem(JOBS, "line", Line)
    first = list(Records(tmp_path / "r.jsonl").results([setting("alone", 5), setting("easgd", 5, period=2)]))
    monkeypatch.setitem(JOBS, "line", lambda seed: 1 / 0)
    assert list(Records(tmp_path / "r.jsonl").results([s for s, _ in first])) == first


@pytest.mark.parametrize("job", JOBS)
def test_every_row_of_the_table_can_be_made(job):
    for s in worth.settings(job, 4, 400, 0):
        assert s.label
        if s.method not in ("alone", "ddp"):
            worth.runs.registry.get(s.method)(**s.options)


def test_the_page_has_a_table_for_each_job_that_has_both_ends(tmp_path, monkeypatch):
    trained = [
        (setting("alone"), {"value": 2.0, "bytes": 0}),
        (setting("ddp"), {"value": 1.0, "bytes": 300}),
        (Setting("gpt", 4, "alone", {}), {"value": 2.0, "bytes": 0}),
        (setting("easgd", period=10), {"value": 1.25, "bytes": 10}),
    ]
    (ours,) = [row for row in shares(trained[:2] + trained[3:]) if row[0].method == "easgd"]
    assert ours[2:] == (0.75, 10 / 300), "three quarters of the gain at a thirtieth of the bytes"
    monkeypatch.setitem(JOBS, "line", Line)
    page = write(tmp_path, trained).read_text()
    assert "| 75 % | 1/30 |" in page
    assert page.count("###") == 1, "GPT at p = 4 has no data-parallel run yet"
