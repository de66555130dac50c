"""Which runs each recipe needs: settings with lists in them, as `easgd compare` takes them.

How to read it: `recipes` names the function here that makes a recipe's runs (fig2: `periods`). `scale.group(method, p,
τ)` is one group of runs with the method's learning rates in `rates` and the budget of `scales`; keyword arguments
replace single settings. A list of values means a run for each of them.
"""

from __future__ import annotations

from typing import Any

from easgd.experiments.paper.images import Generated
from easgd.experiments.paper.rates import CIFAR, DESCENDANTS, ETA, IMAGENET, PAIRS, TAU
from easgd.experiments.paper.scales import Group, Scale

Grid = dict[str, Any]
SPRING_OF_FOUR = 0.9 / 4
"""α = β/p with p = 4."""
DOWNPOURS = ("downpour", "adownpour", "mvadownpour")


def _grid(scale: Scale, groups: list[Group], **more: Any) -> Grid:
    return {**scale.common(), **more, "runs": groups}


def periods(scale: Scale) -> Grid:
    """Figure 2: τ = 1, 4, 16, 64 with p = 4, every method; MDOWNPOUR exists for τ = 1 only."""
    groups = [scale.group("msgd"), scale.group("mdownpour", 4, **_compared(scale, "mdownpour"))]
    for tau in (1, 16) if scale.name == "smoke" else (1, 4, 16, 64):
        for method in ("easgd", "eamsgd", *DOWNPOURS):
            groups.append(scale.group(method, 4, tau, **_compared(scale, method, tau)))
    return _grid(scale, groups)


def _compared(scale: Scale, method: str, period: int = 1) -> Group:
    """On a laptop, where many runs are compared, each is only as long as its method needs to show its behaviour."""
    if scale.name != "laptop":
        return {}
    # DOWNPOUR at a long period differs from τ = 1 only after the loss has begun to fall.
    seconds = {"eamsgd": 100.0, "easgd": 80.0}.get(method, 60.0 if period == 1 else 120.0)
    if period in (4, 64):
        seconds = 60.0  # which all others have, too: figure 2 is compared there
    every = 3.0 if method == "eamsgd" else 5.0
    return {"seconds": seconds, "evaluate_every": every, "target": None}


def _until(scale: Scale, seconds: float) -> Group:
    """End runs of a laptop at a time, whatever their error is; the other scales keep their budgets."""
    return {"seconds": seconds, "target": None} if scale.name == "laptop" else {}


def _trapped(scale: Scale) -> Group:
    """EAMSGD at the paper's rate, larger than the laptop's own: with a long period its workers are trapped."""
    return _compared(scale, "eamsgd") | ({} if scale.name == "smoke" else {"lr": TAU})


def workers(scale: Scale) -> Grid:
    """Figure 3 and the speed-ups: p = 4, 8, 16; τ = 10, and 1 for DOWNPOUR's family."""
    groups = [scale.group("msgd")]
    for p in _many(scale):
        groups += [scale.group("easgd", p, 10), scale.group("eamsgd", p, 10)]
        groups += [scale.group("downpour", p, 1), scale.group("mdownpour", p)]
    return _grid(scale, groups)


def _many(scale: Scale) -> tuple[int, ...]:
    """The paper's numbers of workers; two of them make a smoke test."""
    return (4, 16) if scale.name == "smoke" else (4, 8, 16)


def headline(scale: Scale) -> Grid:
    """MSGD, and EAMSGD with p = 4, 8, 16."""
    return _grid(scale, [scale.group("msgd"), *(scale.group("eamsgd", p, 10) for p in _many(scale))])


def pairs(scale: Scale) -> Grid:
    """MSGD and EAMSGD with p = 4, 16 at every rate of theirs, and p = 16 with a spring as strong as that of four."""
    rates = PAIRS[scale.name]
    # A small rate is late, and the paper's rule asks how low it gets: no error ends its runs.
    groups = [scale.group("msgd", lr=rates["msgd"], **_until(scale, 1000.0))]
    groups += [scale.group("eamsgd", p, 10, lr=rates["eamsgd"]) for p in (4, 16)]
    return _grid(scale, [*groups, _sixteen_like_four(scale)])


def _sixteen_like_four(scale: Scale, **more: Any) -> Group:
    """EAMSGD with p = 16, the spring of four and the largest rate: the fastest p = 16 that was found."""
    return scale.group("eamsgd", 16, 10, lr=max(PAIRS[scale.name]["eamsgd"]), moving_rate=SPRING_OF_FOUR, **more)


def seeds(scale: Scale) -> Grid:
    """MSGD, EAMSGD with p = 4, and the p = 16 of `pairs` that was the fastest, with three seeds each."""
    # On a laptop a run is as long as 30 % takes with two measurements more, MSGD as 25 % takes.
    alone, four, sixteen = (_until(scale, seconds) for seconds in (300.0, 70.0, 50.0))
    groups = [scale.group("msgd", **alone), scale.group("eamsgd", 4, 10, **four), _sixteen_like_four(scale, **sixteen)]
    return _grid(scale, groups, seed=[0, 1, 2])


def footnotes(scale: Scale) -> Grid:
    """Asynchronous ADMM beside EASGD, and EAMSGD whose workers start at points of their own; p = 4."""
    groups = [scale.group("easgd", 4, 1, **_compared(scale, "easgd"))]
    for lr in CIFAR[scale.name]["admm"]:
        penalty = SPRING_OF_FOUR / lr  # ρ = α/η: the spring of EASGD beside it
        short = _compared(scale, "admm") | _until(scale, 40.0)
        groups.append(scale.group("admm", 4, 1, lr=lr, rho=penalty, **short))
    groups += [scale.group("eamsgd", 4, 10), scale.group("eamsgd", 4, 10, start="apart", **_until(scale, 30.0))]
    return _grid(scale, groups)


def sequential(scale: Scale) -> Grid:
    """SGD, MSGD, ASGD, MVASGD, p = 1; without an early end three of them are computed together."""
    short = {"target": None, **_until(scale, 100.0)}
    others = [scale.group(method, **short) for method in ("sgd", "asgd", "mvasgd")]
    return _grid(scale, [scale.group("msgd"), *others])


def rates(scale: Scale) -> Grid:
    """EAMSGD and EASGD with p = 16, τ = 10: every learning rate is a curve of its own."""
    # Sixteen workers take 460 gradients in a virtual second: a laptop can compare how they begin.
    budgets: dict[str, Group] = {"easgd": {}, "eamsgd": _until(scale, 24.0)}
    return _grid(scale, [scale.group(m, 16, 10, lr=ETA[scale.name][m], **budgets[m]) for m in budgets])


def decays(scale: Scale) -> Grid:
    """EASGD and EAMSGD over τ, and EAMSGD at the longest of its own with a decaying learning rate.

    The paper has η = 0.01 and p = 16. On a laptop p is 4, η = 0.01 where EAMSGD is to be trapped and the scale's rate
    elsewhere, τ = 16 stands for 10, and γ is large enough to count over few steps.
    """
    full = scale.name == "paper"
    p = 16 if full else 4
    periods, longest, gammas = {
        "smoke": ((1, 10, 30), 30, [1e-2]),
        "laptop": ((1, 16, 1000), 100, [1e-2]),
        "paper": ((1, 10, 100, 1000), 100, [1e-4, 1e-3]),
    }[scale.name]
    easgd: Group = _compared(scale, "easgd") | ({"lr": TAU} if full else {})
    eamsgd: Group = _compared(scale, "eamsgd") | ({"lr": TAU} if full else {})
    groups = [scale.group("easgd", p, tau, **easgd) for tau in periods]
    groups += [scale.group("eamsgd", p, periods[1], **eamsgd), scale.group("eamsgd", p, longest, **_trapped(scale))]
    groups += [scale.group("eamsgd", p, longest, decay="sqrt", gamma=gammas, **_trapped(scale))]
    return _grid(scale, groups)


def real_breakdown(scale: Scale) -> Grid:
    """Two real workers on this machine: DOWNPOUR τ = 1, EASGD τ = 10. The simulated part needs no runs."""
    steps = {"smoke": 100, "laptop": 200, "paper": 400}[scale.name]
    common = {**scale.common(), "engine": "local", "workers": 2, "steps": steps, "evaluate": "after"}
    # A measure of time, not of learning: no snapshot may disturb it.
    common |= {"evaluate_every": 1e6, "seed": 0}
    groups = [{"method": "downpour", "period": 1}, {"method": "easgd", "period": 10}]
    return {**common, "runs": groups}


def traffic(scale: Scale) -> Grid:
    """EASGD and EAMSGD, p = 4, over τ, in float32 and int8, beside MSGD, which sends nothing.

    On a laptop most runs are those of other recipes.
    """
    groups = [scale.group("msgd")]
    if scale.name == "laptop":
        pairs = [("easgd", 1), ("easgd", 16), ("eamsgd", 1), ("eamsgd", 16)]
        groups += [scale.group(method, 4, tau, **_compared(scale, method)) for method, tau in pairs]
        groups += [scale.group("eamsgd", 4, 10)]
        brief: Group = {"seconds": 48.0, "evaluate_every": 6.0, "target": None}
        groups += [scale.group("eamsgd", 4, 10, compression="int8", **brief)]
        groups += [scale.group("eamsgd", 4, 100, **_trapped(scale))]
        return _grid(scale, [*groups, frugal(scale)])
    taus = (1, 10) if scale.name == "smoke" else (1, 4, 16, 64)
    groups += [
        scale.group(method, 4, tau, compression=["none", "int8"]) for method in ("easgd", "eamsgd") for tau in taus
    ]
    return _grid(scale, [*groups, frugal(scale)])


def frugal(scale: Scale) -> Group:
    """Less than a thousandth of data-parallel training's bytes: int8 or int4, and 280 steps between two exchanges.

    In int8 that holds for as many gradients; 250 steps would do, but the first exchange comes at once, and one more in
    thirty counts. In int4 it holds against the fewer gradients that MSGD needs, too. Four workers diverge at so long a
    period; for two the spring is twice as strong, and the decaying rate keeps them together.
    """
    return scale.group("eamsgd", 2, 280, compression=["int8", "int4"], decay="sqrt", gamma=1e-3)


def unequal(scale: Scale) -> Grid:
    """Four machines of 0.58 to 3.33 s a step: the paper's methods, and their descendants as their papers have them.

    EASGD, EAMSGD and DOWNPOUR take the paper's local steps; local SGD and DiLoCo take AdamW, and so does EASGD once
    more. LocalSGD and DiLoCo average in rounds, in which all wait for the slowest.
    """
    own = DESCENDANTS[scale.name]
    groups: list[Group] = [{"method": m, "lr": own[m]} for m in ("easgd", "eamsgd", "downpour")]
    adam: Group = {"optimizer": "adamw", "lr": own["adamw"]}
    groups += [{"method": m, **adam} for m in ("easgd", "localsgd", "diloco")]
    # N = p: four messages move the center as far as one outer step.
    groups += [{"method": "asyncdiloco", "settings": {"every": 4}, **adam}]
    seconds = {"smoke": 60.0, "laptop": 600.0, "paper": 12_000.0}[scale.name]
    budget: Group = {"cost": "unequal", "workers": 4, "period": 10, "seconds": seconds, "evaluate_every": seconds / 15}
    return _grid(scale, groups, **budget)


SMALL_NETWORKS = {
    "smoke": "(3,16)C(8,14)P(8,7)C(8,5)D(32,1)S(5,1)",
    "laptop": "(3,40)C(16,36)P(16,18)C(32,16)P(32,8)C(32,6)C(32,5)C(32,4)P(32,2)D(128,1)D(128,1)S(20,1)",
}
GENERATED = {
    "smoke": Generated("paper-images-smoke", 18, 5, 600, 200),
    "laptop": Generated("paper-images-laptop", 44, 20, 12_000, 2000),
}
IMAGENET_HOURS = 100.0
"""The paper's text does not say how long it trained."""


def images(scale: Scale) -> Grid:
    """Figure 4: p = 4, 8 on ImageNet and its cluster, without MDOWNPOUR, for which the paper's table has no rate."""
    # Photographs have six steps a worker: with τ = 10 no step would come to the center of an elastic method.
    period = 2 if scale.photos else 10
    groups: list[Group] = [
        {"method": m, "workers": p, "lr": _image_rate(scale, m, p), "period": 1 if m == "downpour" else period}
        for p in (4, 8) for m in ("easgd", "eamsgd", "downpour")
    ]  # fmt: skip
    return {**_image_settings(scale), "runs": [_image_alone(scale, "msgd"), *groups]}


def images_alone(scale: Scale) -> Grid:
    """SGD, MSGD, ASGD, MVASGD on ImageNet; ASGD averages from the first drop of the learning rate on."""
    groups = [_image_alone(scale, method) for method in ("sgd", "msgd", "asgd", "mvasgd")]
    return {**_image_settings(scale), "runs": groups}


def _image_alone(scale: Scale, method: str) -> Group:
    return {"method": method, "lr": _image_rate(scale, method, 1)}


def _image_rate(scale: Scale, method: str, workers: int) -> float:
    """The paper's network has the paper's rates, also on photographs."""
    return IMAGENET["paper" if scale.photos else scale.name][method, workers]


def _image_settings(scale: Scale) -> Grid:
    """ImageNet, its network and its cluster; below paper scale generated images and a small network.

    With photographs the network is the paper's: a few small batches of it take minutes on a CPU.
    """
    full = scale.name == "paper"
    steps = {"smoke": 60, "laptop": 600, "paper": int(IMAGENET_HOURS * 3600 / 1.26)}[scale.name]
    data, network = ("imagenet", "imagenet") if full else (GENERATED[scale.name].name, SMALL_NETWORKS[scale.name])
    size: Group = {"train_subset": 50_000} if full else {"batch": 32, "momentum": 0.9, "train_subset": 500}
    if scale.photos:
        steps, data, network, size = steps // 10, scale.photos, "imagenet", {"batch": 8, "train_subset": 16}
    # Of the cluster's virtual seconds: a step is about 1.26.
    budget = {"seconds": 1.26 * steps, "evaluate_every": 1.26 * steps / (3 if scale.photos else 20)}
    common = {"engine": "simulate", "cost": "paper-imagenet", "decay": "stagnation", "weight_decay": 1e-5, "seed": 0}
    return {**common, **budget, "data": data, "network": network, **size}
