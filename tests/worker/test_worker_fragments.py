"""Fragments and delay in a user's script: what is in flight is saved, used on leaving, and counted once."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import easgd
from easgd import checkpoint
from easgd.records import Step, read_records

METHOD = easgd.EASGD(period=4, moving_rate=0.5, fragments=2, delay=3)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A worker alone at a center of its own; the gradient of every parameter is −1, so that a step adds 1."""
    made = []

    def start(method=METHOD, folder="run", **settings):
        for name, value in {"RUN": tmp_path / folder, "OUT": tmp_path / folder, "RANK": 0, "WORKERS": 1}.items():
            monkeypatch.setenv(f"EASGD_{name}", str(value))
        (tmp_path / folder).mkdir(exist_ok=True)
        model = nn.Linear(2, 2)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        worker = easgd.attach(model, optimizer, method, **settings)
        made.append(worker)

        def step(times=1):
            for _ in range(times):
                model(torch.zeros(1, 2))
                for p in model.parameters():
                    p.grad = -torch.ones_like(p)
                optimizer.step()

        return worker, model, step

    yield start
    for worker in made:
        worker.close()


def x_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("overlap", [True, False])
def test_a_script_gives_the_simulators_numbers(script, overlap):
    worker, model, step = script(overlap=overlap)
    step(11)
    sim = easgd.simulate(
        lambda x, w, s: -torch.ones_like(x), torch.zeros(6), METHOD, lr=1.0, workers=1, steps=11,
        cost=easgd.CostModel(jitter=0),
    )  # fmt: skip
    torch.testing.assert_close(x_of(model), sim.local[-1, 0])
    worker.exchange.settle()
    torch.testing.assert_close(worker.client.snapshot()["x"], sim.center[-1])
    assert worker.client.version == 6
    assert [worker.client.updates(f) for f in (0, 1)] == [3, 3]


def test_a_state_with_answers_in_flight_goes_on(script, tmp_path):
    worker, model, step = script()
    step(5)
    checkpoint.save(tmp_path / "state", {"worker": worker.state_dict(), "model": dict(model.state_dict())})
    center = worker.client.snapshot()
    clocks = [state.clock for state in worker.client.states]
    step(8)
    worker.close()
    expected = x_of(model)
    saved = checkpoint.load(tmp_path / "state")
    assert [flight["fragment"] for flight in saved["worker"]["in_flight"]] == [0], "asked at 4, due after 6"
    saved_center = {"slots": center, "version": sum(clock[0] for clock in clocks), "clocks": clocks}
    again, model, step = script(folder="again", saved=saved_center)
    model.load_state_dict(saved["model"])
    again.load_state_dict(saved["worker"])
    step(8)
    again.close()
    assert torch.equal(x_of(model), expected)


def test_whoever_leaves_uses_what_the_center_has_taken(script):
    """Without gradients x + x̃ is kept: after close() no half exchange is left."""
    worker, model, step = script(easgd.EASGD(period=4, moving_rate=0.5, delay=3))
    step(5)  # x = 5 and d = 2 is in flight, due after step 6
    assert x_of(model).tolist() == [5.0] * 6
    worker.close()
    assert x_of(model).tolist() == [3.0] * 6
    assert worker.client.segment.slots["x"].tolist() == [2.0] * 6


def test_records_count_a_fragments_bytes_in_the_step_that_uses_it(script, tmp_path):
    worker, _, step = script()
    step(9)
    worker.close()
    steps = [r for r in read_records(tmp_path / "run") if isinstance(r, Step)]
    assert [r.bytes for r in steps] == [0, 0, 24, 0, 24, 0, 24, 0, 24], "three of six elements, both ways"
    assert all((r.staleness is None) == (r.bytes == 0) for r in steps)


def test_steps_go_on_while_the_center_does_not_answer(script):
    """The exchange blocks on the center; with delay 3 two more steps are taken before anybody waits."""
    worker, _, step = script(easgd.EASGD(period=4, moving_rate=0.5, delay=3), overlap=True)
    answer, exchange = threading.Event(), worker.client.exchange
    worker.client.exchange = lambda *args: answer.wait(60) and exchange(*args)
    step(2)
    assert worker.clock == 2
    answer.set()
    step(1)
    assert not worker.exchange.in_flight


def test_more_fragments_than_tensors_is_one_line(script):
    with pytest.raises(easgd.SettingError, match=r"fragments = 4: the model has 2 tensors; write fragments=2 or fewer"):
        script(easgd.EASGD(period=4, fragments=4))
