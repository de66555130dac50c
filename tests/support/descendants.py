"""Local SGD and its descendants as plain loops, written from their papers, not from the library.

numpy, float64. `g(x, worker, clock)` is the gradient, `lr` its rate. Every loop returns (center, local) with row 0
the start, as `easgd.simulate` does. The outer optimizers are torch's own, given the outer gradient x̃ − mean(x).
"""

import numpy as np
import torch


def rounds(g, x0, p, lr, steps, due, outer):
    """All workers at once: at the top of round t, if `due(t)`, the center moves and every worker takes it."""
    center, x = x0.copy(), [x0.copy() for _ in range(p)]
    centers, local = [center.copy()], [np.array(x)]
    for t in range(steps):
        if due(t):
            center = outer(center, np.mean(x, axis=0))
            x = [center.copy() for _ in range(p)]
        x = [x[i] - lr * g(x[i], i, t) for i in range(p)]
        centers.append(center.copy())
        local.append(np.array(x))
    return np.array(centers), np.array(local)


def mean(center, average):
    """Local SGD: the center is the mean."""
    return average


class TorchOuter:
    """One of torch's optimizers on the center."""

    def __init__(self, x0, make):
        self.x = torch.from_numpy(x0.copy())
        self.optimizer = make([self.x])

    def __call__(self, center, average):
        self.x.grad = torch.from_numpy(center - average)
        self.optimizer.step()
        return self.x.numpy().copy()


def delayed_nesterov(g, x0, p, tau, lr, steps, eta, mu, n, power=0.0):
    """Asynchronous DiLoCo, worker t mod p acting at tick t."""
    center, m, total = x0.copy(), 0 * x0, 0 * x0
    x, pulled, clock, seen = [x0.copy()] * p, [x0.copy()] * p, [0] * p, [0] * p
    updates, centers, local = 0, [center.copy()], [np.array(x)]
    for t in range(steps):
        i = t % p
        if clock[i] and clock[i] % tau == 0:
            change = (pulled[i] - x[i]) * (1 + updates - seen[i]) ** -power
            center, total, updates = center - eta * change / n, total + change, updates + 1
            if updates % n == 0:
                m = mu * m + total / n
                center, total = center - eta * mu * m, 0 * x0
            x[i], pulled[i], seen[i] = center.copy(), center.copy(), updates
        x[i] = x[i] - lr * g(x[i], i, clock[i])
        clock[i] += 1
        centers.append(center.copy())
        local.append(np.array(x))
    return np.array(centers), np.array(local)


def streaming(x0, parts, period, delay, mixing, gradient, lr, outer_lr, steps):
    """Streaming DiLoCo with an outer SGD and workers that all do the same; return x after every step.

    One part is sent `delay` steps before each multiple of τ/P and answered there, where x becomes a mixture: `mixing`
    is the share of the worker's own x (torchft's `fragment_update_alpha`), the rest is x̃.
    """
    every, center, x, sent, rows = period // parts, list(x0), list(x0), {}, []
    for step in range(1, steps + 1):
        x = [value - lr * gradient for value in x]
        part = (step - 1) // every % parts
        if step % every == (every - delay) % every:
            sent[part] = center[part] - x[part]
        if step % every == 0:
            center[part] -= outer_lr * sent.pop(part)
            x[part] = (1 - mixing) * center[part] + mixing * x[part]
        rows.append(list(x))
    return np.array(rows)
