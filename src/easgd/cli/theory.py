"""`easgd theory`: advice before a training run, and the figures of the analysis."""

from __future__ import annotations

import importlib
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from easgd.cli.parsing import Command, CommandGroup
from easgd.extras import require_report
from easgd.settings import option


@dataclass(frozen=True)
class AdviseOptions:
    """The options of `easgd theory advise`."""

    workers: int = option("p, the number of workers", MISSING)
    lr: float = option("η, the learning rate", MISSING)
    period: int = option("τ, local steps between two exchanges", 10)
    momentum: float = option("δ of Nesterov's momentum; the paper has 0.99", 0.0)
    beta: float | None = option("β = pα (0.9 if no spring is given)")
    moving_rate: float | None = option("α, the part of the difference that an exchange moves")
    rho: float | None = option("ρ, the elastic penalty: α = ηρ")
    curvature: float | None = option(
        "h, the largest Hessian eigenvalue of your loss (easgd.theory.largest_curvature measures it)"
    )
    measure: Literal["digits_mlp", "digits_conv", "cifar"] | None = option(
        "measure h of this network at its start, on a batch of its data set, instead of giving it"
    )
    step_time: float | None = option("seconds of one local step")
    exchange_time: float | None = option("seconds of one exchange")
    center_time: float = option("seconds for which one exchange occupies the center or link that all share", 0.0)
    delay: int = option("k: the answer is used k steps after it was asked for; 1 is the paper's", 1)
    machines: int | None = option("n, on which the workers are; one each if not given")
    parameters: int | None = option("of the model: prints how far the run scales, with --link and --step-time")
    link: float | None = option("of a machine, in Mbit/s in each direction")
    latency: float = option("seconds that a message is under way, besides its bytes", 0.0)
    shards: int | None = option("S, processes that share the center; as advised if not given")
    compression: Literal["bf16", "int8", "int4", "int2", "topk"] | None = option("of what crosses the network")
    fragments: int = option("P: parts of the vector, exchanged in turn, one every τ/P steps", 1)


@dataclass(frozen=True)
class FigureOptions:
    """Where a figure goes."""

    out: Path = option("folder to write into", Path("figures"), metavar="DIR")


@dataclass(frozen=True)
class Fig1Options(FigureOptions):
    """The options of `easgd theory fig1`."""

    points: int = option("points per axis", 300)
    workers: tuple[int, ...] = option("p, one column of panels each", (3, 8), nargs="+", metavar="N")


@dataclass(frozen=True)
class ChaosOptions(FigureOptions):
    """The options of `easgd theory chaos`."""

    workers: int = option("p", 3)
    lr: float = option("η", 0.001)
    rho: float = option("ρ", 2.5)
    ticks: int = option("turns of the global clock", 60_000)


@dataclass(frozen=True)
class MseGridOptions(FigureOptions):
    """The options of `easgd theory mse-grid`."""

    points: int = option("points per axis within a block", 100)


@dataclass(frozen=True)
class DelayOptions(FigureOptions):
    """The options of `easgd theory delay`."""

    workers: int = option("p", 4)
    period: int = option("τ; delays go up to τ − 1", 10)


@dataclass(frozen=True)
class ScaleOptions(FigureOptions):
    """The options of `easgd theory scale`."""

    workers: tuple[int, ...] = option("p, simulated beside the arithmetic", (8, 32, 128, 512), nargs="+", metavar="N")


@dataclass(frozen=True)
class DoubleAverageOptions(FigureOptions):
    """The options of `easgd theory double-average`."""

    samples: int = option("independent runs", 20_000)
    seed: int = option("of the noise", 0)


def _command(name: str, options: type, description: str, example: str) -> Command[Any]:
    return Command(f"theory {name}", options, description, [f"theory {name} {example}"], bare=True)


FIGURES = {
    "fig1": _command(
        "fig1", Fig1Options, "spectral radius of ADMM's and EASGD's round-robin cycle over η × ρ (figure 1)",
        "--points 300 --workers 3 8 --out figures",
    ),
    "chaos": _command(
        "chaos", ChaosOptions, "the paper's diverging ADMM trajectory against EASGD's with α = ηρ",
        "--workers 3 --lr 0.001 --rho 2.5",
    ),
    "mse-grid": _command(
        "mse-grid", MseGridOptions, "error of the center over η × β, p × t (Lemma 1)", "--points 100 --out figures"
    ),
    "limit": _command(
        "limit", FigureOptions, "p times the error of the center against its limit (corollary of Lemma 1)",
        "--out figures",
    ),
    "double-average": _command(
        "double-average", DoubleAverageOptions,
        "the time average of the center against its normal limit (Lemma 2)", "--samples 20000 --seed 0",
    ),
    "delay": _command(
        "delay", DelayOptions, "variance, speed and stability when the answer is used k steps later",
        "--workers 4 --period 10",
    ),
    "scale": _command(
        "scale", ScaleOptions, "steps a second over the number of workers: shards, and a center per machine",
        "--workers 8 32 128",
    ),
}  # fmt: skip
ADVISE = _command(
    "advise", AdviseOptions,
    "α, β, ρ, stability, variance, time spent communicating, shards and scale (EAMSGD with --momentum, else EASGD)",
    "--workers 16 --lr 0.01 --period 10 --momentum 0.99 --curvature 20",
)  # fmt: skip
COMMANDS = CommandGroup(
    "theory", "What the analysis of elastic averaging says about your settings, before a run is spent on them.",
    {
        "advise": ADVISE, **FIGURES,
        "figures": _command("figures", FigureOptions, "all of them with their default settings", "--out figures"),
    },
    "theory advise --workers 16 --lr 0.01 --period 10", "A figure is written as PNG and PDF, with its data as CSV.",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Find the command, parse its arguments, run it."""
    command, rest = COMMANDS.find(argv)
    settings = asdict(command.parse(rest))
    if command is ADVISE:
        from easgd.cli.advice import print_advice

        return print_advice(settings)
    for name in FIGURES if command.name == "theory figures" else [command.name.removeprefix("theory ")]:
        make_figure(name, settings)
    return 0


def make_figure(command: str, settings: dict[str, Any]) -> None:
    """Write one figure and print where it went."""
    require_report("a figure of the theory")
    module = importlib.import_module(f"easgd.experiments.theory.{command.replace('-', '_')}")
    for path in module.make(**settings):
        print(path)
