"""Take a worker away in the middle of training: nobody waits for it, and it starts again from the center.

    easgd launch -n 4 --restarts 1 examples/preempted.py --lose 2

Worker 2 is killed with SIGKILL after a third of its epochs, as a preempted machine is: without
a word. `make demo` runs it.
"""

import argparse
import os
import signal

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import easgd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lose", type=int, metavar="RANK", help="the worker that is killed (none)")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels))
x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
train, test = TensorDataset(x[:1500], y[:1500]), (x[1500:], y[1500:])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
worker = easgd.attach(model, optimizer, easgd.EAMSGD(period=10))
again = int(os.environ.get("EASGD_INCARNATION", "0")) > 0  # this worker was killed and started again
loader = worker.shard(DataLoader(train, batch_size=32, shuffle=True))


@torch.no_grad()
def center_error() -> float:
    """Return the test error of the center."""
    with worker.at_center():
        return (model(test[0]).argmax(1) != test[1]).float().mean().item()


if again:
    print(f"worker {worker.rank} begins again from the center, test error {center_error():.1%}")
for epoch in range(args.epochs // 3 if again else 0, args.epochs):
    if worker.rank == args.lose and not again and epoch == args.epochs // 3:
        os.kill(os.getpid(), signal.SIGKILL)
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if worker.rank == 0 and (epoch + 1) % max(1, args.epochs // 4) == 0:
        print(f"epoch {epoch + 1}: test error of the center {center_error():.1%}")
