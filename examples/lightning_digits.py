"""Handwritten digits with Lightning: its own Trainer, and one callback.

    python examples/lightning_digits.py              # alone
    easgd launch -n 2 examples/lightning_digits.py   # two workers; validation and checkpoints are of the center

Needs `pip install 'easgd[lightning]'`.
"""

import argparse

import lightning.pytorch as L  # noqa: N812
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import easgd
from easgd.integrations.lightning import ElasticAveraging

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--period", type=int, default=10)
parser.add_argument("--out", default="lightning_digits")
args = parser.parse_args()


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("test_error", (self(batch[0]).argmax(1) != batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


L.seed_everything(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(x[1500:], y[1500:]), batch_size=297)

trainer = L.Trainer(
    max_epochs=args.epochs,
    accelerator="cpu",
    default_root_dir=args.out,
    enable_progress_bar=False,
    callbacks=[ElasticAveraging(easgd.EASGD(period=args.period))],
)
trainer.fit(Digits(), train, test)
print(f"test error of the center after {args.epochs} epochs: {trainer.callback_metrics['test_error']:.1%}")
