"""Handwritten digits with accelerate: gradient accumulation, mixed precision, and one line for elastic averaging.

    python examples/accelerate_digits.py             # alone
    easgd launch -n 2 examples/accelerate_digits.py  # two workers; accelerate sees a single process in each

Needs `pip install 'easgd[accelerate]'`.
"""

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import easgd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--period", type=int, default=10)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--precision", choices=["no", "bf16"], default="no")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate, mixed_precision=args.precision)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

worker = easgd.attach(model, optimizer, easgd.EASGD(period=args.period))

for _ in range(args.epochs):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

if worker.rank == 0:
    model.load_state_dict(worker.center())
    model.eval()
    error = (model(x[1500:]).argmax(1) != y[1500:]).float().mean().item()
    print(f"test error of the center after {worker.clock} steps: {error:.1%}")
