import sys

import torch
from torch import nn

import easgd

torch.manual_seed(0)
X = torch.randn(256, 6)
Y = X @ torch.randn(6, 3)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
worker = easgd.attach(model, optimizer, easgd.EASGD(period=2, sync=True))
for _ in range(41):
    rows = torch.randint(0, 256, (32,))
    nn.functional.mse_loss(model(X[rows]), Y[rows]).backward()
    optimizer.step()
    optimizer.zero_grad()
if worker.rank == worker.member == 0:
    torch.save(worker.center(), sys.argv[1])
