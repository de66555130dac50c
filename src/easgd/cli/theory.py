"""`easgd theory`: advice before a training run, and the figures of the analysis."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from easgd.cli.options import Parser
from easgd.errors import unknown

USAGE = """usage: easgd theory COMMAND [options]

What the analysis of elastic averaging says about your settings, before a run is spent on them.

commands:
  advise          α, β, ρ, stability, variance and time spent communicating
  fig1            spectral radius of ADMM's and EASGD's round-robin cycle over η × ρ (figure 1)
  chaos           the paper's diverging ADMM trajectory against EASGD's
  mse-grid        error of the center over η × β, p × t (Lemma 1)
  limit           p times the error of the center against its limit (corollary of Lemma 1)
  double-average  the time average of the center against its normal limit (Lemma 2)
  figures         all five

A figure is written as PNG and PDF, with its data as CSV. `easgd theory COMMAND --help` explains a command.
example: easgd theory advise --workers 16 --lr 0.01 --period 10
"""

Options = dict[str, dict[str, Any]]
OUT: Options = {"--out": {"type": Path, "default": Path("figures"), "help": "folder to write into (figures)"}}
ADVISE: Options = {
    "--workers": {"type": int, "required": True, "help": "p, the number of workers"},
    "--lr": {"type": float, "required": True, "help": "η, the learning rate"},
    "--period": {"type": int, "default": 10, "help": "τ, local steps between two exchanges (10)"},
    "--momentum": {"type": float, "default": 0.0, "help": "δ of Nesterov's momentum; the paper has 0.99 (0)"},
    "--beta": {"type": float, "help": "β = pα (0.9 if no spring is given)"},
    "--moving-rate": {"type": float, "help": "α, the part of the difference that an exchange moves"},
    "--rho": {"type": float, "help": "ρ, the elastic penalty: α = ηρ"},
    "--curvature": {
        "type": float,
        "help": "h, the largest Hessian eigenvalue of your loss (easgd.theory.largest_curvature measures it)",
    },
    "--measure": {
        "choices": ("digits_mlp", "digits_conv", "cifar"),
        "help": "measure h of this network at its start, on a batch of its data set, instead of giving it",
    },
    "--step-time": {"type": float, "help": "seconds of one local step"},
    "--exchange-time": {"type": float, "help": "seconds of one exchange"},
}
FIGURES: dict[str, tuple[str, str, Options]] = {
    "fig1": (
        "Largest absolute eigenvalue of the round-robin cycle over η in (0, 0.01), ρ in (0, 10): ADMM's and EASGD's.",
        "--points 300 --workers 3 8 --out figures",
        {
            "--points": {"type": int, "default": 300, "help": "points per axis (300)"},
            "--workers": {"type": int, "nargs": "+", "default": (3, 8), "help": "p, one column of panels each (3 8)"},
        },
    ),
    "chaos": (
        "ADMM's center from 1000, with settings for which it diverges, against EASGD's with α = ηρ.",
        "--workers 3 --lr 0.001 --rho 2.5",
        {
            "--workers": {"type": int, "default": 3, "help": "p (3)"},
            "--lr": {"type": float, "default": 0.001, "help": "η (0.001)"},
            "--rho": {"type": float, "default": 2.5, "help": "ρ (2.5)"},
            "--ticks": {"type": int, "default": 60_000, "help": "turns of the global clock (60000)"},
        },
    ),
    "mse-grid": (
        "Mean squared error of the center for p = 1 … 10⁴ and t = 1 … ∞, over η × β.",
        "--points 100 --out figures",
        {"--points": {"type": int, "default": 100, "help": "points per axis within a block (100)"}},
    ),
    "limit": ("p·E(x̃ − x*)² at t = ∞ over p, against the corollary.", "--out figures", {}),
    "double-average": (
        "Samples and exact variance of the time average of the center, against the normal limit.",
        "--samples 20000 --seed 0",
        {
            "--samples": {"type": int, "default": 20_000, "help": "independent runs (20000)"},
            "--seed": {"type": int, "default": 0, "help": "of the noise (0)"},
        },
    ),
}
SPRING = "Give the spring under one name: --beta, --moving-rate or --rho."
COMMANDS: dict[str, tuple[str, str, Options]] = {
    "advise": (
        f"What to expect of EASGD (EAMSGD with momentum). {SPRING}",
        "--workers 16 --lr 0.01 --period 10 --momentum 0.99 --curvature 20",
        ADVISE,
    ),
    **{name: (words, example, {**options, **OUT}) for name, (words, example, options) in FIGURES.items()},
    "figures": ("All five figures with their default settings.", "--out figures", OUT),
}


def main(argv: list[str]) -> int:
    """Find the command, parse its arguments, run it."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    command = argv[0]
    if command not in COMMANDS:
        raise unknown("theory command", command, COMMANDS)
    try:
        settings = vars(parser(command).parse_args(argv[1:]))
    except SystemExit as end:  # how argparse ends after --help
        return int(end.code or 0)
    if command == "advise":
        from easgd.cli.advice import print_advice

        return print_advice(settings)
    for name in FIGURES if command == "figures" else [command]:
        make_figure(name, settings)
    return 0


def parser(command: str) -> Parser:
    """Build the parser of one command."""
    words, example, options = COMMANDS[command]
    result = Parser(
        prog=f"easgd theory {command}", description=words, epilog=f"example: easgd theory {command} {example}",
        allow_abbrev=False,
    )  # fmt: skip
    for name, settings in options.items():
        result.add_argument(name, **settings)
    return result


def make_figure(command: str, settings: dict[str, Any]) -> None:
    """Write one figure and print where it went."""
    module = importlib.import_module(f"easgd.experiments.theory.{command.replace('-', '_')}")
    for path in module.make(**settings):
        print(path)
