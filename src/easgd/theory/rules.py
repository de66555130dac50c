"""Every method's turn on the quadratic F(x) = h x²/2: the method's pseudo-code, executed on linear forms.

Not in the paper, whose section 4 has EASGD and ADMM with τ = 1 and no momentum. A variable is a row: the linear form
that gives its value from the state at the start of the turn. Executing the pseudo-code on rows gives the rows of the
linear map, and the lines below correspond to the paper's algorithms 1-5 and eq. 6-8.

A turn is one exchange and the τ steps of its worker up to the next one. These steps change no other worker's variables,
so turns of other workers in between make no difference. Rows have shape [m, n] for m settings at once.

Each rule declares which variables a worker owns and which are shared just before an exchange. A variable that the
exchange overwrites without reading it (the local x of DOWNPOUR) is not part of the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from easgd.theory.checks import Array
from easgd.theory.linear import run

Forms = dict[str, Array]


@dataclass(frozen=True)
class Knobs:
    """Settings of m problems at once; floats have shape [m, 1]."""

    e: Array  # ηh
    alpha: Array  # moving rate α
    delta: Array  # momentum δ
    pull: Array  # ηρ (ADMM)
    rate: Array  # a of the moving averages MVADOWNPOUR, MVASGD
    period: int  # τ
    workers: int  # p
    clock: int  # updates of the averaged variable so far (ADOWNPOUR, ASGD)
    delay: int = 1  # k: steps after which a worker uses the answer (EASGD, EAMSGD)

    def average(self, decay: bool) -> Array | float:
        """Return the weight of the newest value in the time average z: 1/(t + 1), or a."""
        return 1 / (self.clock + 1) if decay else self.rate


class Rule(ABC):
    """What one method does at a turn. The methods replace the rows in `own` and `shared`."""

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    @abstractmethod
    def turn(self, own: list[Forms], shared: Forms, k: Knobs) -> None:
        """Make the turn of worker 0 of `own` in the round-robin schedule."""

    @abstractmethod
    def round(self, own: Forms, shared: Forms, k: Knobs, weight: int) -> None:
        """Make the turns of all workers from the same shared variables, in the synchronous schedule.

        Workers are exchangeable, so only one is computed: a sum over workers is `weight` times its term, with weight p
        if all are equal and 0 for differences, which sum to zero.
        """

    @abstractmethod
    def noise(self, k: Knobs) -> Array:
        """Return the covariance [m, own, own] of the own variables due to the turn's noise, in units of (ησ)²."""

    def center(self, own: list[Forms], shared: Forms, k: Knobs) -> Array:
        """Return the variable that is evaluated: z if there is one, else x̃."""
        return shared["z"] if "z" in shared else shared["center"]


def local_map(k: Knobs, momentum: bool) -> Array:
    """Return the map of one local step on (x) or (x, v): v ← δv − ηh(x + δv), x ← x + v."""
    keep, e = (1 - k.e)[..., 0], k.e[..., 0]
    if not momentum:
        return keep[:, None, None]
    ahead = k.delta[..., 0] * keep
    return np.stack([np.stack([keep, ahead], -1), np.stack([-e, ahead], -1)], -2)


def advance(own: Forms, names: tuple[str, ...], L: Array) -> None:
    """Apply the small map L to the named variables of one worker."""
    rows = [own[name] for name in names]
    for i, name in enumerate(names):
        own[name] = sum((L[:, i, j, None] * row for j, row in enumerate(rows)), np.zeros(1))


class Elastic(Rule):
    """EASGD and, with momentum, EAMSGD (algorithms 1 and 2), the answer used k steps after it was asked for.

        x̃ ← x̃ + d,   x ← x after k local steps − d,   d = α(x − x̃) when asked

    With k = 1 this is the paper's method: the gradient is taken before the elastic move.
    """

    shared = ("center",)

    def __init__(self, momentum: bool) -> None:
        self.momentum = momentum
        self.own = ("x", "v") if momentum else ("x",)

    def turn(self, own: list[Forms], shared: Forms, k: Knobs) -> None:
        shared["center"] = shared["center"] + self._exchange_and_step(own[0], shared, k)

    def round(self, own: Forms, shared: Forms, k: Knobs, weight: int) -> None:
        shared["center"] = shared["center"] + weight * self._exchange_and_step(own, shared, k)

    def _exchange_and_step(self, own: Forms, shared: Forms, k: Knobs) -> Array:
        d = k.alpha * (own["x"] - shared["center"])
        L = local_map(k, self.momentum)
        advance(own, self.own, np.linalg.matrix_power(L, k.delay))
        own["x"] = own["x"] - d
        advance(own, self.own, np.linalg.matrix_power(L, k.period - k.delay))
        return np.asarray(d)

    def path(self, own: Forms, shared: Forms, k: Knobs) -> Iterator[tuple[Array, Array]]:
        """Yield, for each of the τ points where a gradient is taken, x and the variance that its noise has added.

        The first point is the one at the exchange; the variance is in units of (ησ)².
        """
        d = k.alpha * (own["x"] - shared["center"])
        L, n = local_map(k, self.momentum), len(self.own)
        for number in range(k.period):
            if number == k.delay:
                own["x"] = own["x"] - d
            yield own["x"], run(L, np.ones((n, n)), number)[1][:, 0, 0]
            advance(own, self.own, L)

    def noise(self, k: Knobs) -> Array:
        n = len(self.own)
        return run(local_map(k, self.momentum), np.ones((n, n)), k.period)[1]


class Alone(Rule):
    """SGD and MSGD; with a time average of x ASGD and MVASGD. The center is the worker's own x or its average."""

    def __init__(self, momentum: bool, average: str = "") -> None:
        self.momentum, self.average = momentum, average
        self.moved = ("x", "v") if momentum else ("x",)
        self.own = (*self.moved, "z") if average else self.moved

    def turn(self, own: list[Forms], shared: Forms, k: Knobs) -> None:
        self.round(own[0], shared, k, 1)

    def round(self, own: Forms, shared: Forms, k: Knobs, weight: int) -> None:
        for number in range(k.period):
            if self.average:
                a = 1 / (k.clock + number + 1) if self.average == "decay" else k.rate
                own["z"] = (1 - a) * own["z"] + a * own["x"]
            advance(own, self.moved, local_map(k, self.momentum))

    def noise(self, k: Knobs) -> Array:
        cov = np.zeros((k.e.shape[0], len(self.own), len(self.own)))
        M, Q = np.zeros_like(cov), np.zeros_like(cov)
        n = len(self.moved)
        M[:, :n, :n], Q[:, :n, :n] = local_map(k, self.momentum), 1.0
        if self.average:
            a = np.broadcast_to(k.average(self.average == "decay"), k.rate.shape)[:, 0]
            M[:, n, n], M[:, n, 0] = 1 - a, a
        return run(M, Q, k.period)[1]

    def center(self, own: list[Forms], shared: Forms, k: Knobs) -> Array:
        return own[0]["z" if self.average else "x"]


class DownpourRule(Rule):
    """DOWNPOUR (algorithm 3); with a time average of the center ADOWNPOUR and MVADOWNPOUR (section 5).

    A worker owns v, its change since the last exchange. After the exchange it is at x̃, and τ steps bring it to
    (1 − ηh)^τ x̃; the difference is the new v.
    """

    own = ("v",)

    def __init__(self, average: str = "") -> None:
        self.average = average
        self.shared = ("center", "z") if average else ("center",)

    def _send(self, push: Array, shared: Forms, k: Knobs) -> None:
        if self.average:
            a = k.average(self.average == "decay")
            shared["z"] = (1 - a) * shared["z"] + a * shared["center"]  # x̃_t, not x̃_{t+1}
        shared["center"] = shared["center"] + push

    def turn(self, own: list[Forms], shared: Forms, k: Knobs) -> None:
        self._send(own[0]["v"], shared, k)
        own[0]["v"] = ((1 - k.e) ** k.period - 1) * shared["center"]

    def round(self, own: Forms, shared: Forms, k: Knobs, weight: int) -> None:
        self._send(weight * own["v"], shared, k)  # the whole round is one update of the center
        own["v"] = ((1 - k.e) ** k.period - 1) * shared["center"]

    def noise(self, k: Knobs) -> Array:
        return run((1 - k.e)[..., None], np.ones((1, 1)), k.period)[1]


class MDownpourRule(DownpourRule):
    """MDOWNPOUR as printed (algorithms 4 and 5): v ← δv − ηg, x̃ ← x̃ + δv; for τ > 1 −ηg is the τ steps' sum.

    Here `v` is the worker's message and `momentum` the master's v. A synchronous round is one update of the master with
    the sum of the messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared = ("center", "momentum")

    def _send(self, push: Array, shared: Forms, k: Knobs) -> None:
        shared["momentum"] = k.delta * shared["momentum"] + push
        shared["center"] = shared["center"] + k.delta * shared["momentum"]


class Admm(Rule):
    """ADMM (eq. 6-8). The center is not a state variable: it is the mean of the workers' terms xʲ − λʲ.

    With τ > 1, plain steps follow an exchange, and the term keeps its value from the exchange.
    """

    def __init__(self, steady: bool) -> None:
        self.own = ("lam", "x") if steady else ("lam", "x", "term")

    def _term(self, own: Forms) -> Array:
        return own["term"] if "term" in own else own["x"] - own["lam"]

    def _turn(self, own: Forms, center: Array, k: Knobs) -> None:
        own["lam"] = own["lam"] - (own["x"] - center)
        own["x"] = ((1 - k.e) * own["x"] + k.pull * (own["lam"] + center)) / (1 + k.pull)
        if "term" in own:
            own["term"] = own["x"] - own["lam"]
        own["x"] = (1 - k.e) ** (k.period - 1) * own["x"]

    def turn(self, own: list[Forms], shared: Forms, k: Knobs) -> None:
        self._turn(own[0], self.center(own, shared, k), k)

    def round(self, own: Forms, shared: Forms, k: Knobs, weight: int) -> None:
        self._turn(own, self._term(own) * weight / k.workers, k)

    def noise(self, k: Knobs) -> Array:
        first, keep = (1 / (1 + k.pull[:, 0])) ** 2, (1 - k.e[:, 0]) ** (k.period - 1)
        cov = np.zeros((k.e.shape[0], len(self.own), len(self.own)))
        cov[:, 1, 1] = keep**2 * first + run((1 - k.e)[..., None], np.ones((1, 1)), k.period - 1)[1][:, 0, 0]
        if "term" in self.own:
            cov[:, 2, 2], cov[:, 1, 2], cov[:, 2, 1] = first, keep * first, keep * first
        return cov

    def center(self, own: list[Forms], shared: Forms, k: Knobs) -> Array:
        return np.asarray(sum((self._term(one) for one in own), np.zeros(1)) / len(own))


def rule(method: str, momentum: bool, period: int) -> Rule:
    """Return the rule of a method by its name in the paper, in lower case."""
    rules: dict[str, Callable[[], Rule]] = {
        "easgd": lambda: Elastic(momentum),
        "eamsgd": lambda: Elastic(True),
        "downpour": DownpourRule,
        "adownpour": lambda: DownpourRule("decay"),
        "mvadownpour": lambda: DownpourRule("moving"),
        "mdownpour": MDownpourRule,
        "admm": lambda: Admm(period == 1),
        "sgd": lambda: Alone(momentum),
        "msgd": lambda: Alone(True),
        "asgd": lambda: Alone(momentum, "decay"),
        "mvasgd": lambda: Alone(momentum, "moving"),
    }
    return rules[method]()


METHODS = (
    *("easgd", "eamsgd", "downpour", "adownpour", "mvadownpour", "mdownpour", "admm"),
    *("sgd", "msgd", "asgd", "mvasgd"),
)
