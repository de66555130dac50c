"""Hugging Face's own `Trainer.train` with the callback, on real workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from linear_problem import EPOCHS, PERIOD, STEPS, by_hand

pytest.importorskip("transformers", reason="needs easgd[transformers]")
pytest.importorskip("accelerate", reason="needs easgd[accelerate]")

pytestmark = pytest.mark.timeout(300)  # two processes that import the framework, on a busy machine

SCRIPT = f"""
import json, os, signal, sys
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
sys.path.insert(0, {str(Path(__file__).parent)!r})
import easgd
from easgd.integrations.transformers import ElasticAveragingCallback, ElasticTrainerMixin
from linear_problem import *

rank = int(os.environ.get("EASGD_RANK", 0))
told = {{"evaluated": [], "center": []}}

class Model(PreTrainedModel):
    config_class = PretrainedConfig
    killed_at = None
    def __init__(self, config):
        super().__init__(config)
        self.net = torch.nn.Linear(3, 1, bias=False)
        self.post_init()
    def _init_weights(self, module):
        torch.nn.init.zeros_(module.weight)
    def forward(self, x, labels):
        if self.training:
            if self.killed_at == trainer.state.global_step:
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            told["evaluated"].append(self.net.weight[0].tolist())
            told["center"].append(elastic.worker.center()["net.weight"][0].tolist())
        output = self.net(x)
        return {{"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}}

class ElasticTrainer(ElasticTrainerMixin, Trainer):
    pass

class Unshuffled(ElasticTrainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)

data = [{{"x": x, "labels": y}} for x, y in zip(*samples(rank))]
def arguments(**more):
    settings = dict(
        output_dir="results", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=SAMPLES, gradient_accumulation_steps=ACCUMULATE, learning_rate=LR, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, use_cpu=True, disable_tqdm=True,
        report_to=[],
    )
    return TrainingArguments(**(settings | more))
model = Model(PretrainedConfig())
elastic = ElasticAveragingCallback(easgd.EASGD(period=PERIOD, sync=True))
def tell(**more):
    told.update(clock=elastic.worker.clock, weight=model.net.weight[0].tolist(), **more)
    open(f"told-{{rank}}.json", "w").write(json.dumps(told))
"""


UNSHUFFLED = """
import json, torch
import easgd
from easgd.integrations.transformers import ElasticAveragingCallback
from transformers import Trainer, TrainingArguments

seen = []
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def forward(self, x):
        if self.training:
            seen.append(x.flatten().tolist())
        return {"loss": self.net(x).sum()}

class Unshuffled(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)

args = TrainingArguments(
    output_dir="results", num_train_epochs=2, per_device_train_batch_size=2, use_cpu=True, disable_tqdm=True,
    report_to=[], save_strategy="no",
)
elastic = ElasticAveragingCallback(easgd.EASGD(period=2))
data = [{"x": torch.tensor([float(k)])} for k in range(8)]
Unshuffled(Net().eval(), args, train_dataset=data, callbacks=[elastic]).train()
open(f"told-{elastic.worker.rank}.json", "w").write(json.dumps(seen))
"""


def test_a_sampler_that_does_not_shuffle_begins_elsewhere_on_every_worker(launch):
    """Also of a model in eval mode, as `from_pretrained` leaves it."""
    ended = launch(UNSHUFFLED)
    assert ended.code == 0, ended.output
    assert ended.told(0) == 2 * [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    assert ended.told(1) == 2 * [[4.0, 5.0], [6.0, 7.0], [0.0, 1.0], [2.0, 3.0]]


def test_train_is_the_method_written_by_hand(launch):
    body = """
args = arguments(num_train_epochs=1, eval_strategy="epoch", save_strategy="epoch")
trainer = Unshuffled(model, args, train_dataset=data, eval_dataset=data, callbacks=[elastic])
trainer.train()
half = f"{args.output_dir}/checkpoint-{STEPS // 2}"
own = easgd.checkpoint.load(f"{half}/easgd.safetensors")["weights"]["net.weight"][0].tolist()
saved = Model.from_pretrained(half).net.weight[0].tolist()
first = dict(told, clock=elastic.worker.clock, weight=model.net.weight[0].tolist(), saved=saved, own=own,
             step=trainer.state.global_step, out=args.output_dir, logs=trainer.state.log_history)

class Look(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        told["start"] = [model.net.weight[0].tolist(), elastic.worker.clock]
model = Model(PretrainedConfig())
elastic = ElasticAveragingCallback(easgd.EASGD(period=PERIOD, sync=True))
trainer = Unshuffled(model, arguments(), train_dataset=data, callbacks=[elastic, Look()])
trainer.train(resume_from_checkpoint=half)
model.save_pretrained(f"{args.output_dir}/center")
final = Model.from_pretrained(f"{args.output_dir}/center").net.weight[0].tolist()
tell(first=first, step=trainer.state.global_step, final=final)
"""
    ended = launch(SCRIPT.replace("import easgd\n", "import easgd, easgd.checkpoint\n") + body)
    assert ended.code == 0, ended.output
    expected = [center.tolist() for center in by_hand()]
    half = STEPS // EPOCHS
    for rank in (0, 1):
        told = ended.told(rank)["first"]
        assert told["clock"] == told["step"] == half
        assert told["weight"] == pytest.approx(expected[half - 1], rel=1e-5)
        assert told["evaluated"] == told["center"] == [told["saved"]]
        assert told["saved"] == told["weight"] != told["own"]
        assert told["out"] == f"results/worker-{rank}"
        sent = [row["easgd/bytes"] for row in told["logs"] if "loss" in row]
        assert [bool(bytes_) for bytes_ in sent] == [t % PERIOD == 0 for t in range(half)]

        resumed = ended.told(rank)
        assert resumed["start"] == [told["own"], half]
        assert resumed["clock"] == resumed["step"] == STEPS
        assert resumed["final"] == resumed["weight"] == pytest.approx(expected[-1], rel=1e-5)


def test_steps_that_the_scaler_skips_count_as_the_trainer_counts_them(launch):
    body = """
class Poisoned(Model):
    def forward(self, x, labels):
        output = super().forward(x, labels)
        if self.training and trainer.state.global_step == 1 and rank == 1:
            output["loss"] = output["loss"] * float("inf")
        return output
model = Poisoned(PretrainedConfig())
trainer = Unshuffled(model, arguments(), train_dataset=data, callbacks=[elastic])
trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
trainer.accelerator.native_amp = True
trainer.train()
tell(step=trainer.state.global_step)
"""
    ended = launch(SCRIPT + body)
    assert ended.code == 0, ended.output
    for rank in (0, 1):
        told = ended.told(rank)
        assert told["clock"] == told["step"] == STEPS
        assert all(abs(w) < 1e3 for w in told["weight"])


def test_a_killed_worker_costs_the_other_nothing(launch):
    body = """
if rank == 1:
    Model.killed_at = 5
trainer = Trainer(model, arguments(), train_dataset=data, callbacks=[elastic])
trainer.train()
tell(logs=trainer.state.log_history)
"""
    ended = launch(SCRIPT + body)
    assert ended.code != 0
    told = ended.told(0)
    assert told["clock"] == STEPS
    assert not (ended.folder / "told-1.json").exists()
    assert any("easgd/waiting" in row for row in told["logs"])  # the callback's own, with the plain `Trainer`


def test_bf16_schedulers_and_an_order_of_its_own(launch):
    body = """
class Order(torch.utils.data.Dataset):
    seen = []
    def __len__(self):
        return SAMPLES
    def __getitem__(self, i):
        self.seen.append(i)
        return data[i]
args = arguments(bf16=True, optim="adamw_torch", lr_scheduler_type="cosine", warmup_steps=2, max_grad_norm=1.0,
                 load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch")
elastic = ElasticAveragingCallback(easgd.EASGD(period=PERIOD))
trainer = ElasticTrainer(model, args, train_dataset=Order(), eval_dataset=data)
trainer.add_callback(elastic)  # as a script does whose trainer is made elsewhere
trainer.train()
best = Model.from_pretrained(trainer.state.best_model_checkpoint).net.weight[0].tolist()
told["out"] = args.output_dir
tell(best=best, seen=Order.seen[:SAMPLES], rates=[r["learning_rate"] for r in trainer.state.log_history if "loss" in r])
"""
    ended = launch(SCRIPT + body)
    assert ended.code == 0, ended.output
    told = [ended.told(rank) for rank in (0, 1)]
    assert sorted(told[0]["seen"]) == sorted(told[1]["seen"])
    assert told[0]["seen"] != told[1]["seen"]
    assert [one["out"] for one in told] == ["results/worker-0", "results/worker-1"]
    for one in told:
        assert one["clock"] == len(one["rates"]) == STEPS
        assert len(set(one["rates"])) > STEPS / 2
        assert one["weight"] == one["best"]
        assert one["best"] in one["evaluated"]  # saved as it was evaluated, though the other worker moves the center
