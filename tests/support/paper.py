"""The paper's algorithms as plain loops, written from its pseudo-code and equations, not from the library.

numpy, float64, one list per variable. `rate(t)` is η on a worker's own clock, `wd` the l₂ coefficient λ, which is part
of the loss: the gradient at a point y is g(y, worker, clock) + λy.
Every loop returns (center, local, average) with row 0 the start, as `easgd.simulate` does.
"""

import numpy as np


class Log:
    def __init__(self, center, local, average=None):
        self.center, self.local, self.average = [center.copy()], [np.array(local)], [average]

    def add(self, center, local, average=None):
        self.center.append(center.copy())
        self.local.append(np.array(local))
        self.average.append(None if average is None else average.copy())

    def arrays(self):
        average = None if self.average[-1] is None else np.array(self.average)
        return np.array(self.center), np.array(self.local), average


class Mean:
    """z_{t+1} = (1 − a_{t+1}) z_t + a_{t+1} x̃_t with z_0 = x̃_0; called with x̃_t just before every center update."""

    def __init__(self, x0, a=None):
        self.z, self.t, self.a = x0.copy(), 0, a

    def see(self, center):
        a = 1 / (self.t + 1) if self.a is None else self.a
        self.z = (1 - a) * self.z + a * center
        self.t += 1


def easgd_round_robin(g, x0, p, tau, alpha, rate, steps, delta=0.0, wd=0.0):
    """Algorithms 1 and 2, worker t mod p acting at global clock t."""
    x, v, clock, c = [x0.copy() for _ in range(p)], [0 * x0 for _ in range(p)], [0] * p, x0.copy()
    log = Log(c, x)
    for t in range(steps):
        i = t % p
        eta = rate(clock[i])
        old = x[i].copy()
        if clock[i] % tau == 0:
            x[i] = x[i] - alpha(eta) * (old - c)
            c = c + alpha(eta) * (old - c)
        y = old + delta * v[i]
        v[i] = delta * v[i] - eta * (g(y, i, clock[i]) + wd * y)
        x[i] = x[i] + v[i]
        clock[i] += 1
        log.add(c, x)
    return log.arrays()


def easgd_sync(g, x0, p, tau, alpha, rate, steps, delta=0.0, wd=0.0, average=False):
    """Equations 3 and 4 (and the momentum form), all workers at once from the same center."""
    x, v, c = [x0.copy() for _ in range(p)], [0 * x0 for _ in range(p)], x0.copy()
    mean = Mean(x0) if average else None
    log = Log(c, x, x0 if average else None)
    for t in range(steps):
        eta = rate(t)
        old, c_old = [xi.copy() for xi in x], c.copy()
        if t % tau == 0:
            if mean:
                mean.see(c)
            c = c_old + sum(alpha(eta) * (xi - c_old) for xi in old)
        for i in range(p):
            y = old[i] + delta * v[i]
            v[i] = delta * v[i] - eta * (g(y, i, t) + wd * y)
            x[i] = old[i] + v[i] - (alpha(eta) * (old[i] - c_old) if t % tau == 0 else 0)
        log.add(c, x, mean.z if mean else None)
    return log.arrays()


def downpour(g, x0, p, tau, rate, steps, wd=0.0, sync=False, average=None):
    """Algorithm 3. `average`: None, "mean" or a constant a. The first exchange pushes nothing: no center update."""
    x, v, clock, c = [x0.copy() for _ in range(p)], [None] * p, [0] * p, x0.copy()
    mean = None if average is None else Mean(x0, None if average == "mean" else average)
    log = Log(c, x, x0 if mean else None)
    for t in range(steps):
        acting = range(p) if sync else [t % p]
        exchanging = [i for i in acting if clock[i] % tau == 0]
        pushing = [i for i in exchanging if v[i] is not None]
        if pushing:
            if mean:
                mean.see(c)
            c = c + sum(v[i] for i in pushing)
        for i in exchanging:
            x[i], v[i] = c.copy(), 0 * x0
        for i in acting:
            step = rate(clock[i]) * (g(x[i], i, clock[i]) + wd * x[i])
            x[i] = x[i] - step
            v[i] = v[i] - step
            clock[i] += 1
        log.add(c, x, mean.z if mean else None)
    return log.arrays()


def mdownpour(g, x0, p, delta, rate, steps, wd=0.0, sync=False):
    """Algorithms 4 and 5 as printed: the master takes a gradient, v ← δv − ηg, x̃ ← x̃ + δv."""
    grad, clock, c, v = [None] * p, [0] * p, x0.copy(), 0 * x0
    x = [x0.copy() for _ in range(p)]
    log = Log(c, x)
    for t in range(steps):
        acting = range(p) if sync else [t % p]
        sent = [grad[i] for i in acting if grad[i] is not None]
        if sent:
            v = delta * v - sum(sent)
            c = c + delta * v
        for i in acting:
            grad[i] = rate(clock[i]) * (g(c, i, clock[i]) + wd * c)
            x[i] = c - grad[i]  # what the worker's own optimizer made of the gradient it will send
            clock[i] += 1
        log.add(c, x)
    return log.arrays()


def admm(g, x0, p, rho, rate, steps, wd=0.0, sync=False):
    """Equations 6-8, τ = 1."""
    x, lam, clock, c = [x0.copy() for _ in range(p)], [0 * x0 for _ in range(p)], [0] * p, x0.copy()
    log = Log(c, x)
    for t in range(steps):
        for i in range(p) if sync else [t % p]:
            eta = rate(clock[i])
            lam[i] = lam[i] - (x[i] - c)
            gradient = g(x[i], i, clock[i]) + wd * x[i]
            x[i] = (x[i] - eta * gradient + eta * rho * (lam[i] + c)) / (1 + eta * rho)
            clock[i] += 1
        c = sum(x[i] - lam[i] for i in range(p)) / p
        log.add(c, x)
    return log.arrays()


def sequential(g, x0, delta, rate, steps, wd=0.0, average=None):
    """SGD and MSGD, with the averages of ASGD and MVASGD."""
    x, v = x0.copy(), 0 * x0
    mean = None if average is None else Mean(x0, None if average == "mean" else average)
    log = Log(x, [x], x0 if mean else None)
    for t in range(steps):
        y = x + delta * v
        v = delta * v - rate(t) * (g(y, 0, t) + wd * y)
        if mean:
            mean.see(x)
        x = x + v
        log.add(x, [x], mean.z if mean else None)
    return log.arrays()
