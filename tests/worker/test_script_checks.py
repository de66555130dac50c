"""What a script does beside its attached optimizer is noticed, where the center would be worthless in silence."""

from __future__ import annotations

import json
import os

import pytest
import torch
from torch import nn

import easgd
from attaching import net, train
from easgd.worker import open_workers, script_checks


def attached(method=None, lr=0.1):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, optimizer, easgd.attach(model, optimizer, method or easgd.EASGD(period=2))


def test_weights_that_are_loaded_after_attach_stop_the_run_with_one_line(run_folder):
    model, optimizer, worker = attached()
    model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()})
    with pytest.raises(easgd.SettingError, match=r"between attach and the first step.* call easgd.attach after that"):
        train(model, optimizer, steps=1)
    worker.close()


def test_weights_that_are_loaded_after_attach_alone_are_warned_of(capsys):
    """The script trains as it is; its author hears of it before it is launched."""
    model, optimizer, worker = attached()
    model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()})
    train(model, optimizer, steps=3)
    assert capsys.readouterr().err.count("under `easgd launch` the center would not have them") == 1
    worker.close()


def test_a_script_alone_that_changes_nothing_is_not_warned(capsys):
    model, optimizer, worker = attached()
    train(model, optimizer, steps=3)
    assert capsys.readouterr().err == ""
    worker.close()


@pytest.mark.parametrize("change", ["the same weights", "another dtype", "a worker's state"])
def test_changes_that_the_center_can_bear(change, run_folder):
    model, optimizer, worker = attached()
    if change == "the same weights":
        model.load_state_dict(worker.center())
    elif change == "another dtype":
        model.to(torch.bfloat16)
    else:
        model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()})
        worker.load_state_dict(worker.state_dict())
    dtype = next(model.parameters()).dtype
    for _ in range(3):
        model(torch.ones(1, 6, dtype=dtype)).sum().backward()
        optimizer.step()
    assert worker.clock == 3
    worker.close()


def test_an_optimizer_that_is_made_again_is_noticed_once(run_folder, capsys, monkeypatch):
    monkeypatch.setattr(script_checks, "STEPS_OF_ANOTHER", 3)
    model, first, worker = attached()
    train(model, first, steps=2)
    train(model, torch.optim.Adam(model.parameters()), steps=9)
    worker.close()
    err = capsys.readouterr().err
    assert err.count("another optimizer (Adam) has taken the last 3 steps") == 1
    assert worker.clock == 2


def test_an_optimizer_of_another_model_is_warned_of(run_folder, capsys):
    model = net()
    worker = easgd.attach(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), easgd.EASGD(period=2))
    assert capsys.readouterr().err.count("worker 0: the optimizer has none of the model's parameters") == 1
    worker.close()


def test_an_optimizer_of_some_parameters_and_others_is_no_news(run_folder, capsys):
    model, loss = net(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([next(model.parameters()), *loss.parameters()], lr=0.1)
    easgd.attach(model, optimizer, easgd.EASGD(period=2)).close()
    assert "the optimizer has none" not in capsys.readouterr().err


def test_parameters_in_the_place_of_a_model_are_refused_in_one_line():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(easgd.SettingError, match=r"model = generator: it must be an nn.Module; write easgd.attach\("):
        easgd.attach(model.parameters(), optimizer, easgd.EASGD())


def test_optimizers_of_other_models_and_in_turn_are_no_news(run_folder, capsys, monkeypatch):
    monkeypatch.setattr(script_checks, "STEPS_OF_ANOTHER", 3)
    model, mine, worker = attached()
    second, other = torch.optim.Adam(model.parameters()), nn.Linear(6, 3)
    critic = torch.optim.Adam(other.parameters())
    for _ in range(3):
        train(model, mine, steps=1)
        train(model, second, steps=2)
        train(other, critic, steps=4)
    worker.close()
    assert "another optimizer" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "words"), [(0, "has taken no step"), (5, "ended after 5 steps, before the first exchange"), (11, None)]
)
def test_a_script_that_ends_before_its_first_exchange_is_told(steps, words, run_folder, capsys, tmp_path):
    open_workers.close_all()  # those that other tests of this process have left
    capsys.readouterr()
    model, optimizer, worker = attached(easgd.EASGD(period=10))
    start = worker.center()["0.weight"]
    train(model, optimizer, steps=steps)
    assert torch.equal(worker.center()["0.weight"], start) == (words is not None)
    open_workers.close_all()
    err = capsys.readouterr().err
    if words is None:
        assert "warning" not in err
    else:
        assert words in err
        records = (tmp_path / "out" / "records-0-0.jsonl").read_text().splitlines()
        assert any(words in json.loads(line).get("detail", "") for line in records)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_copy_of_the_process_does_not_speak_for_the_worker(run_folder, tmp_path):
    model, optimizer, worker = attached()
    train(model, optimizer, steps=3)
    pid = os.fork()
    if pid == 0:
        try:  # as a script's child that trains on and ends
            train(model, optimizer, steps=3)
            worker.close()
            open_workers.close_all()
            os._exit(worker.clock)
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3, "the child's steps are not the worker's"
    assert worker.client.control.joined() == [0], "the worker is still in the run"
    version = worker.client.version
    train(model, optimizer, steps=2)
    assert worker.client.version > version
    worker.close()
    lines = [json.loads(line) for line in (tmp_path / "out" / "records-0-0.jsonl").read_text().splitlines()]
    assert [line["clock"] for line in lines if line["event"] == "step"] == [0, 1, 2, 3, 4], "no line twice"
