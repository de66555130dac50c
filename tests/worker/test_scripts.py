"""What scripts do that know nothing of us: one seed for all, several models, layers unfrozen later, skipped steps."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

import easgd
from attaching import net, train
from easgd.engines.local.control import ended, mark_dead
from easgd.launch.event_log import loss_summary
from easgd.worker import seeding

SAME_SEED = """
import easgd, torch
from torch import nn
torch.manual_seed(1337)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
easgd.attach(model, optimizer, easgd.EASGD(period=2), reseed={reseed})
for step in range(8):
    x = torch.randn(4, 8)
    print("batch", step, round(float(x.sum()), 6))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def batches(out: str, rank: int) -> list[str]:
    return [line.removeprefix(f"[{rank}] ") for line in out.splitlines() if line.startswith(f"[{rank}] batch")]


def test_workers_of_a_script_with_a_fixed_seed_draw_different_batches(launched):
    code, out, err, _ = launched(SAME_SEED.format(reseed=True), workers=2)
    again = launched(SAME_SEED.format(reseed=True), workers=2, where="b")[1]
    assert code == 0, err
    assert batches(out, 0) != batches(out, 1)
    assert [batches(out, r) for r in (0, 1)] == [batches(again, r) for r in (0, 1)], "and the same ones every time"
    assert "exactly the same" not in err


def test_workers_that_make_the_same_steps_are_told_apart_by_a_warning(launched):
    code, out, err, folder = launched(SAME_SEED.format(reseed=False), workers=2)
    assert code == 0, err
    assert batches(out, 0) == batches(out, 1)
    assert err.count("computed exactly the same first gradient") == 1
    assert "worker.shard(loader)" in err
    events = [json.loads(line) for path in folder.glob("records-*.jsonl") for line in path.read_text().splitlines()]
    assert sum("exactly the same" in e.get("detail", "") for e in events) == 1


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_seeds_differ_by_rank_and_incarnation_and_follow_from_the_scripts_own():
    found = {}
    for seed in (0, 1):
        for place in ((0, 0), (1, 0), (1, 1), (2, 0)):
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            plain = drawn()
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            seeding.reseed(*place)
            found[seed, place] = drawn()
            if place == (0, 0):
                assert found[seed, place] == plain, "the first worker keeps the script's own stream"
    for column in zip(*found.values(), strict=True):
        assert len(set(column)) == len(found)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    seeding.reseed(1, 1)
    assert drawn() == found[1, (1, 1)]


def steps(models, optimizers, count=6):
    for _ in range(count):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("names", [(None, None), ("generator", "discriminator")])
@pytest.mark.parametrize("shapes", [((4, 3), (4, 2)), ((4, 3), (4, 3))])
def test_a_script_with_two_models_has_a_center_for_each(names, shapes, run_folder):
    models = [nn.Linear(*shape) for shape in shapes]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    workers = [
        easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5), name=name)
        for model, optimizer, name in zip(models, optimizers, names, strict=True)
    ]
    starts = [worker.center() for worker in workers]
    steps(models, optimizers)
    for worker, model, start in zip(workers, models, starts, strict=True):
        center = worker.center()
        assert center.keys() == model.state_dict().keys()
        assert all(center[key].shape == model.state_dict()[key].shape for key in center)
        assert not torch.equal(center["weight"], start["weight"])
        assert worker.clock == 6
    assert not torch.equal(workers[0].center()["weight"][:2], workers[1].center()["weight"][:2])
    for worker in workers:
        worker.close()


def test_a_model_is_attached_once(run_folder):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD())
    with pytest.raises(easgd.SettingError, match="attached already"):
        easgd.attach(model, optimizer, easgd.EASGD())
    with pytest.raises(easgd.SettingError, match="name = a/b"):
        easgd.attach(net(), torch.optim.SGD(net().parameters(), lr=0.1), easgd.EASGD(), name="a/b")
    worker.close()


def test_who_attaches_again_begins_at_another_center(run_folder):
    """Two trainings in one script: the second starts from its own model, and all workers meet there anew."""
    for name in ("center", "center-2"):
        model = nn.Linear(2, 1)
        start = model.weight.detach().clone()
        worker = easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), easgd.EASGD())
        assert worker.context.center == name
        assert torch.equal(worker.center()["weight"], start)
        assert worker.client.control.joined() == [0]
        worker.close()
        mark_dead(run_folder, 1, 0)  # another worker, which need not be waited for at either
        assert ended(run_folder) == {1}
    model = nn.Linear(2, 1)
    with pytest.raises(easgd.SettingError, match="name = center-2: this process has been at that center"):
        easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), easgd.EASGD(), name="center-2")


@pytest.mark.parametrize("sync", [True, False])
def test_the_distance_is_recorded_and_heard(sync, run_folder):
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5, sync=sync), overlap=False)
    heard = []
    worker.recorder.listen(heard.append)
    expected = []
    for _ in range(3):
        expected.append(float((model.weight - worker.center()["weight"]).norm()))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    worker.close()
    assert [step.distance for step in heard] == pytest.approx(expected, abs=1e-6)
    assert expected[-1] > 0


def frozen_net():
    model = net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_layer_that_is_unfrozen_later_stops_the_run_with_one_line(run_folder):
    model, optimizer = frozen_net()
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1))
    train(model, optimizer, steps=2)
    model[0].requires_grad_(True)
    with pytest.raises(easgd.SettingError, match=r"0\.weight was frozen .* include_frozen=True"):
        train(model, optimizer, steps=1)
    worker.close()


def test_frozen_layers_may_be_tied_from_the_start(run_folder):
    model, optimizer = frozen_net()
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5), include_frozen=True)
    start = worker.center()["0.weight"].clone()
    train(model, optimizer, steps=2)
    assert torch.equal(worker.center()["0.weight"], start)
    model[0].requires_grad_(True)
    train(model, optimizer, steps=3)
    assert not torch.equal(worker.center()["0.weight"], start), "what trains now reaches the center"
    worker.close()


@pytest.mark.parametrize("method", [easgd.EASGD, easgd.EAMSGD])
def test_a_group_may_be_added_later_for_layers_that_were_tied(method, run_folder):
    """As in gradual unfreezing: the optimizer begins with the head, and is given the layer below it later."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.5, nesterov=True)
    worker = easgd.attach(model, optimizer, method(period=1, moving_rate=0.5), include_frozen=True)
    start = worker.center()["0.weight"].clone()
    train(model, optimizer, steps=2)
    assert torch.equal(worker.center()["0.weight"], start)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    train(model, optimizer, steps=3)
    assert worker.clock == 5
    moved, whole = worker.center()["0.weight"] - start, model[0].weight.detach() - start
    assert 0 < moved.norm() < whole.norm(), "the center follows behind"
    worker.close()


class Wrapper(torch.optim.Optimizer):
    """As accelerate's: an Optimizer whose __init__ never ran."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_a_wrapped_optimizer_is_unwrapped(run_folder):
    model = net()
    wrapped = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    worker = easgd.attach(model, wrapped, easgd.EASGD(period=1))
    for _ in range(3):
        model(torch.ones(1, 6)).sum().backward()
        wrapped.step()
    assert worker.clock == 3
    worker.close()


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_grad_scaler_skips_does_not_tick(fused, run_folder):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for poison in (1.0, float("inf"), 1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(poison * model(torch.ones(1, 6)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert worker.clock == 3
    assert worker.client.version == 3
    worker.close()


def test_sparse_gradients_are_exchanged_like_others(run_folder):
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5))
    start = worker.center()["weight"].clone()
    for _ in range(4):
        model(torch.tensor([1, 2])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = (worker.center()["weight"] != start).any(1)
    assert moved.nonzero().flatten().tolist() == [1, 2]
    worker.close()


def test_the_users_own_numbers_are_recorded(run_folder, tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
    for step in range(3):
        model(torch.ones(1, 6)).sum().backward()
        worker.log(loss=0.5 + step, accuracy=0.25)
        optimizer.step()
    assert worker.device == torch.device("cpu")
    worker.close()
    lines = [json.loads(line) for line in (tmp_path / "out" / "records-0-0.jsonl").read_text().splitlines()]
    joined = next(line for line in lines if line["event"] == "join")
    told = {"method": "EASGD", "workers": 1, "period": 2, "lr": 0.1, "engine": "local"}
    assert joined["attached"] == told  # what a report knows of a script
    rows = [line for line in lines if line["event"] == "step"]
    assert [(row["loss"], row["scalars"]) for row in rows] == [(0.5 + k, {"accuracy": 0.25}) for k in range(3)]


def test_what_the_center_gains_is_measured_told_and_summed_up(run_folder, tmp_path, capsys):
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5))
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        worker.log(loss=2.0)
        own, center = worker.compare(lambda: model.weight.norm())
    assert model.training
    assert own == pytest.approx(float(model.weight.norm().detach()))
    assert center == pytest.approx(float(worker.center()["weight"].norm()))
    assert own != center
    assert f"easgd: step 3: own weights {own:.4f}, center {center:.4f}" in capsys.readouterr().out
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    worker.close()
    losses, compared = loss_summary(tmp_path / "out")
    assert losses.endswith("their last 100 steps: 2.0000")
    gain = f"the center gains {own - center:.4f}" if center < own else "the center gains nothing"
    assert compared == f"last comparison: own weights {own:.4f} (mean of 1), center {center:.4f}: {gain}"


def stepping(model, optimizer, compiled=False):
    step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
    for k in range(6):
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + k)).square().mean().backward()
        step()


@pytest.mark.parametrize(
    ("make", "compiled"),
    [
        (lambda p: torch.optim.Muon(p, lr=0.01), False),
        (lambda p: torch.optim.Adafactor(p, lr=0.01), False),
        (lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), False),
        (lambda p: torch.optim.AdamW(p, lr=0.01), True),
    ],
    ids=["Muon", "Adafactor", "fused AdamW", "a compiled step"],
)
def test_any_optimizer_is_tied_to_the_center(make, compiled, run_folder):
    """After each exchange the center has moved by half of the worker's way: α = 1/2, τ = 1, p = 1."""
    model = nn.Linear(4, 3, bias=False)  # Muon takes matrices only
    optimizer = make(model.parameters())
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5))
    start = worker.center()["weight"].clone()
    stepping(model, optimizer, compiled)
    assert worker.clock == 6
    moved, whole = worker.center()["weight"] - start, model.weight.detach() - start
    assert 0 < moved.norm() < whole.norm(), "the center follows behind"
    worker.close()


def test_an_averaged_copy_of_the_model_is_left_alone(run_folder):
    """torch's EMA and SWA utilities keep a model of their own: it follows the worker, not the center."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5))
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(4):
        train(model, optimizer, steps=1)
        average.update_parameters(model)
    assert int(average.n_averaged) == 4
    assert worker.clock == 4
    worker.close()


ONE_BATCH = """
import easgd, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(16, 8)
class Hidden(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)
model = nn.Sequential({hidden}, nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
for step in range(4):
    batch = {batch}
    loss = model(batch).square().mean()
    print("loss", step, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("hidden", ["nn.Linear(8, 8), nn.Dropout(0.5)", "Hidden(8, 8)"])
@pytest.mark.parametrize(("batch", "warned"), [("x[4 * step : 4 * step + 4]", 1), ("x[torch.randperm(16)[:4]]", 0)])
def test_dropout_does_not_hide_that_workers_read_the_same_batches(hidden, batch, warned, launch):
    code, out, err = launch(ONE_BATCH.format(hidden=hidden, batch=batch), workers=2).wait()
    assert code == 0, err
    first = {line.partition("] ")[2] for line in out.splitlines() if "] loss 0" in line}
    assert len(first) == 2, "the masks differ"
    assert err.count("have read exactly the same first batch") == warned, err
