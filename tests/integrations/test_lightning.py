"""Lightning's own `Trainer.fit` with the callback, on real workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from linear_problem import EPOCHS, PERIOD, STEPS, by_hand

pytest.importorskip("lightning", reason="needs easgd[lightning]")
EventAccumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator

pytestmark = pytest.mark.timeout(300)  # two processes that import the framework, on a busy machine

SCRIPT = f"""
import json, os, signal, sys
import lightning.pytorch as L, torch
from torch.utils.data import DataLoader, TensorDataset
sys.path.insert(0, {str(Path(__file__).parent)!r})
import easgd
from easgd.integrations.lightning import ElasticAveraging
from linear_problem import *

rank = int(os.environ.get("EASGD_RANK", 0))
told = {{"validated": [], "center": []}}

class Module(L.LightningModule):
    killed_at = None
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(self.net.weight)
    def training_step(self, batch, index):
        if self.killed_at == index:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def on_validation_epoch_end(self):
        if elastic.worker is not None:
            told["validated"].append(self.net.weight[0].tolist())
            told["center"].append(elastic.worker.center()["net.weight"][0].tolist())
    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LR)

module = Module()
loader = DataLoader(TensorDataset(*samples(rank)), batch_size=BATCH)
elastic = ElasticAveraging(easgd.EASGD(period=PERIOD, sync=True))
settings = dict(
    max_epochs=EPOCHS, accumulate_grad_batches=ACCUMULATE, log_every_n_steps=1, accelerator="cpu",
    enable_progress_bar=False, enable_model_summary=False,
)
def tell(**more):
    told.update(clock=elastic.worker.clock, weight=module.net.weight[0].tolist(), **more)
    open(f"told-{{rank}}.json", "w").write(json.dumps(told))
"""
FIT = """
trainer = L.Trainer(callbacks=[elastic], **settings)
trainer.fit(module, loader, loader)
checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
own = checkpoint["easgd"]["weights"]["net.weight"][0].tolist()
saved = checkpoint["state_dict"]["net.weight"][0].tolist()
tell(step=trainer.global_step, own=own, saved=saved, root=trainer.default_root_dir)
"""


def test_fit_is_the_method_written_by_hand(launch):
    ended = launch(SCRIPT + FIT)
    assert ended.code == 0, ended.output
    expected = [center.tolist() for center in by_hand()]
    for rank in (0, 1):
        told = ended.told(rank)
        assert told["clock"] == told["step"] == STEPS
        assert told["weight"] == pytest.approx(expected[-1], rel=1e-5)
        assert told["validated"] == told["center"]  # the validation saw the center's weights
        assert len(told["validated"]) == EPOCHS
        assert told["validated"][0] == pytest.approx(expected[STEPS // EPOCHS - 1], rel=1e-5)
        assert told["saved"] == told["weight"] != told["own"]
        assert Path(told["root"]) == ended.folder / f"worker-{rank}"
        assert list(ended.folder.glob(f"worker-{rank}/lightning_logs/version_*/checkpoints/*.ckpt"))
        events = EventAccumulator(str(next(ended.folder.glob(f"worker-{rank}/lightning_logs/version_*"))))
        sent = [scalar.value for scalar in events.Reload().Scalars("easgd/bytes")]
        assert len(sent) == STEPS
        assert [bool(bytes_) for bytes_ in sent] == [t % PERIOD == 0 for t in range(STEPS)]
    assert not list(ended.folder.glob("lightning_logs/**/events*"))


UNSHUFFLED = """
import json
import lightning.pytorch as L, torch
from torch.utils.data import DataLoader
import easgd
from easgd.integrations.lightning import ElasticAveraging

seen = []
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        seen.append(batch.flatten().tolist())
        return self.net(batch).sum()
    def validation_step(self, batch, index):
        assert batch.flatten().tolist() == [2.0 * index, 2.0 * index + 1]
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.arange(8.0).reshape(8, 1)
elastic = ElasticAveraging(easgd.EASGD(period=2))
trainer = L.Trainer(
    max_epochs=2, callbacks=[elastic], enable_progress_bar=False, enable_model_summary=False, logger=False,
    enable_checkpointing=False, accelerator="cpu",
)
trainer.fit(Module(), DataLoader(data, batch_size=2), DataLoader(data, batch_size=2))
open(f"told-{elastic.worker.rank}.json", "w").write(json.dumps(seen))
"""


def test_a_loader_that_does_not_shuffle_begins_elsewhere_on_every_worker(launch):
    """Also in its first epoch, which Lightning begins to read before the callback attaches; not in validation."""
    ended = launch(UNSHUFFLED)
    assert ended.code == 0, ended.output
    assert ended.told(0) == 2 * [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    assert ended.told(1) == 2 * [[4.0, 5.0], [6.0, 7.0], [0.0, 1.0], [2.0, 3.0]]
    assert "same first gradient" not in ended.output


SCALED = """
from lightning.pytorch.plugins import MixedPrecision
class Poisoned(Module):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        return loss * float("inf") if index in (2, 3) and rank == 1 else loss
module = Poisoned()
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
settings["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler=scaler)]
"""


def test_steps_that_the_scaler_skips_count_as_lightning_counts_them(launch):
    ended = launch(SCRIPT + SCALED + FIT)
    assert ended.code == 0, ended.output
    for rank in (0, 1):
        told = ended.told(rank)
        assert told["clock"] == told["step"] == STEPS
        assert told["validated"] == told["center"]
        assert all(abs(w) < 1e3 for w in told["weight"])


def test_a_killed_worker_costs_the_other_nothing(launch):
    ended = launch(SCRIPT + "module.killed_at = 5 if rank == 1 else None" + FIT)
    assert ended.code != 0
    assert ended.told(0)["clock"] == STEPS
    assert not (ended.folder / "told-1.json").exists()


def test_resuming_goes_on_from_the_workers_own_weights(launch):
    body = """
first = L.Trainer(callbacks=[elastic], logger=False, **{**settings, "max_epochs": 1})
first.fit(module, loader)
path = first.checkpoint_callback.best_model_path
own = torch.load(path, weights_only=True)["easgd"]["weights"]["net.weight"]
class Look(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, index):
        told.setdefault("start", [pl_module.net.weight[0].tolist(), elastic.worker.clock])
module, elastic = Module(), ElasticAveraging(easgd.EASGD(period=PERIOD, sync=True))
second = L.Trainer(callbacks=[elastic, Look()], logger=False, **settings)
second.fit(module, loader, ckpt_path=path)
tell(own=own[0].tolist(), step=second.global_step)
"""
    ended = launch(SCRIPT + body)
    assert ended.code == 0, ended.output
    for rank in (0, 1):
        told = ended.told(rank)
        assert told["start"] == [told["own"], STEPS // EPOCHS]
        assert told["clock"] == told["step"] == STEPS
        # The same run without the break: the center was saved with the worker's weights.
        assert told["weight"] == pytest.approx(by_hand()[-1].tolist(), rel=1e-5)


def test_alone_it_changes_nothing():
    namespace: dict = {}
    fit = """
trainer = L.Trainer(callbacks=callbacks, logger=False, enable_checkpointing=False, **settings)
trainer.fit(module, loader)
"""
    weights = []
    for callbacks in ("[elastic]", "[]"):
        exec(SCRIPT + f"callbacks = {callbacks}" + fit, namespace := {})
        weights.append(namespace["module"].net.weight.detach())
    assert torch.equal(*weights)


def test_two_optimizers_are_refused():
    from lightning.pytorch import LightningModule

    import easgd
    from easgd.integrations.lightning import ElasticAveraging

    callback = ElasticAveraging(easgd.EASGD(period=2))
    trainer = type("Trainer", (), {"optimizers": [1, 2]})()
    with pytest.raises(easgd.SettingError, match=r"optimizers = 2: .* call easgd.attach for each"):
        callback.on_train_start(trainer, LightningModule())
    with pytest.raises(easgd.SettingError, match="recalibrate"):
        ElasticAveraging(easgd.EASGD(period=2), buffers="recalibrate")
