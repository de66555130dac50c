"""One small problem for one attached worker, and every method that it is tried with."""

import torch
from torch import nn

import easgd

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2))
STEPS = 23


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(worker, step):
    rows = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(1000 * worker + step))
    return X[rows], Y[rows]


def loss_of(model, xy):
    return nn.functional.cross_entropy(model(xy[0]), xy[1])


def train(model, optimizer, steps=STEPS, scheduler=None, start=0):
    for step in range(start, start + steps):
        loss_of(model, batch(0, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


METHODS = {
    "easgd": easgd.EASGD(period=3, beta=0.6),
    "easgd τ=1": easgd.EASGD(period=1, moving_rate=0.3),
    "easgd rho": easgd.EASGD(period=2, rho=2.0),
    "easgd sync": easgd.EASGD(period=2, beta=0.6, sync=True),
    "eamsgd": easgd.EAMSGD(period=2, beta=0.6, momentum=0.8),
    "downpour": easgd.Downpour(period=3),
    "mdownpour": easgd.MDownpour(momentum=0.5),
    "adownpour": easgd.ADownpour(period=2),
    "mvadownpour": easgd.MVADownpour(period=2, rate=0.2),
    "averaged": easgd.averaged(easgd.EASGD(period=2, beta=0.6)),
    "admm": easgd.ADMM(0.5, period=2),
    "sgd": easgd.SGD(),
    "msgd": easgd.MSGD(momentum=0.8),
    "asgd": easgd.ASGD(),
    "mvasgd": easgd.MVASGD(rate=0.3),
}


def decaying(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(0.2))
