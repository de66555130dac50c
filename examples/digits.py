"""Train a small network on handwritten digits: a plain PyTorch script, and one line that makes it a worker.

    python examples/digits.py                        # alone, as before
    easgd launch -n 4 examples/digits.py             # four workers of this machine, tied to one center

Lines marked `# easgd` are the whole difference to the script without it.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import easgd  # easgd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--period", type=int, default=10)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train, test = TensorDataset(x[:1500], y[:1500]), (x[1500:], y[1500:])

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
loader = DataLoader(train, batch_size=32, shuffle=True)

worker = easgd.attach(model, optimizer, easgd.EAMSGD(period=args.period, momentum=0.9))  # easgd
loader = worker.shard(loader)  # easgd

for _ in range(args.epochs):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if worker.rank == 0:  # easgd
    model.load_state_dict(worker.center())  # easgd
    model.eval()
    error = (model(test[0]).argmax(1) != test[1]).float().mean().item()
    print(f"test error of the center after {args.epochs} epochs: {error:.1%}")
