"""`easgd theory`: advice before a training run, and the figures of the analysis."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from easgd.errors import SettingError, unknown

if TYPE_CHECKING:
    from easgd.theory import Advice

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


@dataclass
class AdviseArguments:
    """What to expect of EASGD (EAMSGD with momentum). Give the spring under one name: --beta, --moving-rate or --rho.

    example: easgd theory advise --workers 16 --lr 0.01 --period 10 --momentum 0.99 --curvature 20
    """

    workers: int
    """p, the number of workers"""
    lr: float
    """η, the learning rate"""
    period: int = 10
    """τ, local steps between two exchanges"""
    momentum: float = 0.0
    """δ of Nesterov's momentum; the paper has 0.99"""
    beta: float | None = None
    """β = pα; 0.9 if no spring is given"""
    moving_rate: float | None = None
    """α, the part of the difference that an exchange moves"""
    rho: float | None = None
    """ρ, the elastic penalty: α = ηρ"""
    curvature: float | None = None
    """h, the largest Hessian eigenvalue of your loss (easgd.theory.largest_curvature measures it)"""
    measure: Literal["digits_mlp", "digits_conv", "cifar"] | None = None
    """measure h of this network at its start, on a batch of its data set, instead of giving it"""
    step_time: float | None = None
    """seconds of one local step"""
    exchange_time: float | None = None
    """seconds of one exchange"""


@dataclass
class Fig1Arguments:
    """Largest absolute eigenvalue of the round-robin cycle over η in (0, 0.01), ρ in (0, 10): ADMM's and EASGD's.

    example: easgd theory fig1 --points 300 --workers 3 8 --out figures
    """

    points: int = 300
    """points per axis"""
    workers: tuple[int, ...] = (3, 8)
    """p, one column of panels each"""
    out: Path = Path("figures")
    """folder to write into"""


@dataclass
class ChaosArguments:
    """ADMM's center from 1000, with settings for which it diverges, against EASGD's with α = ηρ.

    example: easgd theory chaos --workers 3 --lr 0.001 --rho 2.5
    """

    workers: int = 3
    """p"""
    lr: float = 0.001
    """η"""
    rho: float = 2.5
    """ρ"""
    ticks: int = 60_000
    """turns of the global clock"""
    out: Path = Path("figures")
    """folder to write into"""


@dataclass
class MseGridArguments:
    """Mean squared error of the center for p = 1 … 10⁴ and t = 1 … ∞, over η × β.

    example: easgd theory mse-grid --points 100 --out figures
    """

    points: int = 100
    """points per axis within a block"""
    out: Path = Path("figures")
    """folder to write into"""


@dataclass
class LimitArguments:
    """p·E(x̃ − x*)² at t = ∞ over p, against the corollary.

    example: easgd theory limit --out figures
    """

    out: Path = Path("figures")
    """folder to write into"""


@dataclass
class DoubleAverageArguments:
    """Samples and exact variance of the time average of the center, against the normal limit.

    example: easgd theory double-average --samples 20000 --seed 0
    """

    samples: int = 20_000
    """independent runs"""
    seed: int = 0
    """of the noise"""
    out: Path = Path("figures")
    """folder to write into"""


@dataclass
class FiguresArguments:
    """All five figures with their default settings.

    example: easgd theory figures --out figures
    """

    out: Path = Path("figures")
    """folder to write into"""


FIGURES: dict[str, type] = {
    "fig1": Fig1Arguments,
    "chaos": ChaosArguments,
    "mse-grid": MseGridArguments,
    "limit": LimitArguments,
    "double-average": DoubleAverageArguments,
}
T = TypeVar("T")


def main(argv: list[str]) -> int:
    """Find the command, parse its arguments, run it."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    command, rest = argv[0], argv[1:]
    if command not in ("advise", "figures", *FIGURES):
        raise unknown("theory command", command, ("advise", "figures", *FIGURES))
    if command == "advise":
        arguments = parse(AdviseArguments, rest, command)
        return arguments if isinstance(arguments, int) else print_advice(arguments)
    if command == "figures":
        everything = parse(FiguresArguments, rest, command)
        if isinstance(everything, int):
            return everything
        for name in FIGURES:
            make_figure(name, {"out": everything.out})
        return 0
    figure = parse(FIGURES[command], rest, command)
    return figure if isinstance(figure, int) else make_figure(command, vars(figure))


def parse(kind: Callable[..., T], argv: list[str], command: str) -> T | int:
    """Return the arguments, or the exit code after `--help`; what is wrong with them becomes one line."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, prog=f"easgd theory {command}", args=argv, config=(tyro.conf.DisallowNone,))
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
    # tyro explains itself in a box: keep its sentence, drop the title, the frame and the help that follows.
    words = [line.strip(" │╭╮╰╯─-\t") and line.strip(" │") for line in said.getvalue().splitlines()[1:]]
    words = [line for line in words if line]
    end = next((i for i, line in enumerate(words) if line.startswith(("Argument helptext", "For full helptext"))), None)
    raise SettingError(f"{' '.join(words[:end])}; see `easgd theory {command} --help`")


def make_figure(command: str, settings: dict[str, object]) -> int:
    """Write one figure and print where it went."""
    module = importlib.import_module(f"easgd.experiments.theory.{command.replace('-', '_')}")
    for path in module.make(**settings):
        print(path)
    return 0


def print_advice(arguments: AdviseArguments) -> int:
    """Print the advice; exit code 0 whether stable or not: it was asked, and it answered."""
    from rich.console import Console

    from easgd.theory import advise

    settings = vars(arguments)
    console = Console(highlight=False, soft_wrap=True)
    if (network := settings.pop("measure")) is not None:
        if arguments.curvature is not None:
            raise SettingError(f"curvature = {arguments.curvature} and measure = {network}: give one of the two")
        settings["curvature"] = measured(network)
        console.print(
            f"measured        curvature h = {settings['curvature']:.4g} of {network} at its start", markup=False
        )
    advice = advise(**settings)
    for line in report(advice):
        console.print(line, markup=False)
    if advice.shares:
        console.print(shares(advice))
        console.print(f"waiting takes less than 1 % from period = {advice.quiet_period}", markup=False)
    else:
        console.print(
            "communication   give --step-time and --exchange-time for the share of time it takes", markup=False
        )
    return 0


def measured(network: str, images: int = 256) -> float:
    """Return the largest curvature of one of the library's networks at its start, on a batch of its data."""
    import torch
    from torch.nn.functional import cross_entropy

    from easgd import data, models
    from easgd.theory import largest_curvature

    net = getattr(models, network)().eval()
    crop = net.input_shape.size
    x, y = next(data.evaluation(data.load(network.split("_")[0].replace("cifar", "cifar10")), crop=crop, batch=images))
    torch.set_num_threads(1)
    return float(largest_curvature(net, lambda model: cross_entropy(model(x), y)).value)


def report(advice: Advice) -> list[str]:
    """Return the advice as lines."""
    spring, momentum = advice.spring, f", momentum δ = {advice.momentum:g}" if advice.momentum else ""
    names = {"default beta": "β, by default", "beta": "β", "moving_rate": "α", "rho": "ρ"}
    order = "one after another (round-robin)" if advice.schedule == "round-robin" else "all at once (synchronous)"
    run = f"workers p = {advice.workers}, lr η = {advice.lr:g}, period τ = {advice.period}{momentum}"
    lines = [
        f"{advice.method.upper()}: {run}",
        f"spring          α = {spring.moving_rate:.6g}   β = pα = {spring.beta:.6g}   ρ = α/η = {spring.rho:.6g}"
        f"   (given: {names[spring.given]})",
    ]
    limit = f"stable up to curvature h = {advice.largest_curvature:.5g} at this learning rate"
    if advice.curvature is None or advice.radius is None:
        lines.append(f"stability       {limit}, workers {order}")
        lines.append("                give --curvature to know by what margin you are inside")
    else:
        verdict = "STABLE" if advice.stable else "UNSTABLE"
        side = advice.largest_curvature / advice.curvature
        margin = f"{side:.4g} times the curvature" if advice.stable else f"only {side:.4g} times the curvature"
        lines.append(
            f"stability       {verdict} at curvature h = {advice.curvature:g}: errors are multiplied by "
            f"{advice.radius:.6g} a period, workers {order}"
        )
        lines.append(f"                margin: it bears {margin}; {limit}")
        lines.append(f"                at this curvature the learning rate may be up to {advice.largest_lr:.5g}")
    if advice.any_order_curvature is not None:
        lines.append(
            f"                in any order of the workers: up to h = {advice.any_order_curvature:.5g} (section 4)"
        )
    alone = "MSGD" if advice.momentum else "SGD"
    for e, ratio in advice.variance.items():
        size = f"{ratio:.4g} of one worker's {alone} (1/p = {1 / advice.workers:.4g})"
        lines.append(
            f"variance        of the center at ηh = {e:.4g}: {size if ratio < math.inf else 'grows without bound'}"
        )
    return lines


def shares(advice: Advice) -> object:
    """Return the table of the time spent communicating over the period."""
    from rich.table import Table

    table = Table(title="share of time spent communicating")
    for name in ("period τ", "waiting for it", "hidden behind the next step"):
        table.add_column(name, justify="right")
    for share in advice.shares:
        mark = " ←" if share.period == advice.period else ""
        table.add_row(f"{share.period}{mark}", f"{share.waiting:.2%}", f"{share.hidden:.2%}")
    return table
