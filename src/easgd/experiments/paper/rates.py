"""The learning rates that the recipes run, per method and scale.

CIFAR holds for fig2, fig3, headline, speedup, sequential, footnotes and bytes; IMAGENET for fig4 and the recipes named
`…-imagenet`. So figure 2 runs DOWNPOUR at 0.1 (smoke, digits), 0.005 (laptop) and 0.005, 0.001, 0.0005 (paper), and
draws the best of them.

Five recipes differ:
    pairs        runs several rates of MSGD and EAMSGD at every scale (PAIRS), one of MSGD's beyond the paper's
    eta          tries several rates at every scale (ETA), for EASGD and EAMSGD
    tau          runs TAU at paper scale, and on a laptop where EAMSGD is to be trapped; CIFAR otherwise
    descendants  has rates of AdamW beside the paper's (DESCENDANTS)
    breakdown    measures time, not learning: it runs the defaults of `easgd train`
"""

from __future__ import annotations

# The paper's are the supplement's tables; ADMM, which is compared with EASGD alone, has EASGD's. A laptop has time for
# one of them: the largest, but the middle one for EAMSGD, whose largest scatters the workers for longer than the runs
# last. The smoke test's are those of digits.
_CIFAR = {
    #               smoke   laptop    paper
    "easgd":       ([0.2],  [0.05],   [0.05, 0.01, 0.005]),
    "eamsgd":      ([0.1],  [0.005],  [0.01, 0.005, 0.001]),
    "admm":        ([0.2],  [0.05],   [0.05, 0.01, 0.005]),
    "downpour":    ([0.1],  [0.005],  [0.005, 0.001, 0.0005]),
    "adownpour":   ([0.1],  [0.005],  [0.005, 0.001, 0.0005]),
    "mvadownpour": ([0.1],  [0.005],  [0.005, 0.001, 0.0005]),
    "mdownpour":   ([0.01], [5e-5],   [5e-5, 1e-5, 5e-6]),
    "sgd":         ([0.2],  [0.05],   [0.05, 0.01, 0.005]),
    "asgd":        ([0.2],  [0.05],   [0.05, 0.01, 0.005]),
    "mvasgd":      ([0.2],  [0.05],   [0.05, 0.01, 0.005]),
    "msgd":        ([0.05], [0.001],  [0.001, 0.0005, 0.0001]),
}  # fmt: skip
CIFAR = {
    scale: {method: rates[column] for method, rates in _CIFAR.items()}
    for column, scale in enumerate(("smoke", "laptop", "paper"))
}
ETA = {
    "smoke": {"easgd": [0.2, 0.05], "eamsgd": [0.1, 0.02]},
    "laptop": CIFAR["paper"],
    "paper": CIFAR["paper"],
}
_EVERY_PAIR = {"msgd": [0.005, *CIFAR["paper"]["msgd"]], "eamsgd": CIFAR["paper"]["eamsgd"]}
PAIRS = {
    "smoke": {"msgd": [0.05, 0.02], "eamsgd": [0.1, 0.05]},
    "laptop": _EVERY_PAIR,
    "paper": _EVERY_PAIR,
}
TAU = 0.01
DESCENDANTS = {
    "smoke": {"easgd": [0.2], "eamsgd": [0.1], "downpour": [0.1], "adamw": [3e-3]},
    "laptop": {"easgd": [0.05], "eamsgd": [0.005], "downpour": [0.005], "adamw": [1e-3]},
    "paper": {m: CIFAR["paper"][m] for m in ("easgd", "eamsgd", "downpour")} | {"adamw": [2e-3, 1e-3, 5e-4]},
}

# (method, p); the paper's table has no rate for MDOWNPOUR.
_IMAGENET = {
    #                  smoke and laptop   paper
    ("sgd", 1):        (0.1,              0.05),
    ("msgd", 1):       (0.02,             0.0005),
    ("asgd", 1):       (0.1,              0.05),
    ("mvasgd", 1):     (0.1,              0.05),
    ("easgd", 4):      (0.2,              0.1),
    ("easgd", 8):      (0.2,              0.1),
    ("eamsgd", 4):     (0.05,             0.001),
    ("eamsgd", 8):     (0.05,             0.001),
    ("downpour", 4):   (0.05,             0.02),
    ("downpour", 8):   (0.02,             0.01),
}  # fmt: skip
IMAGENET = {
    scale: {run: rates[scale == "paper"] for run, rates in _IMAGENET.items()} for scale in ("smoke", "laptop", "paper")
}
