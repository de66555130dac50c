"""The part of `easgd theory` that says what to expect of settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from easgd.errors import SettingError

if TYPE_CHECKING:
    from easgd.theory import Advice


def print_advice(settings: dict[str, Any]) -> int:
    """Print the advice; exit code 0 whether stable or not: it was asked, and it answered."""
    from rich.console import Console

    from easgd.cli.scaling import cluster_of, table
    from easgd.theory import advise

    cluster, shards = cluster_of(settings), settings.pop("shards", None)
    if cluster is not None and settings["exchange_time"] is None:
        settings["exchange_time"] = cluster.exchange_time(shards or 1)
    console = Console(highlight=False, soft_wrap=True)
    if (network := settings.pop("measure")) is not None:
        if settings["curvature"] is not None:
            raise SettingError(f"curvature = {settings['curvature']} and measure = {network}: give one of the two")
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
        behind = "the next step" if advice.auto_delay == 1 else f"the next {advice.auto_delay} steps"
        console.print(
            f"hidden behind {behind}, from period = {advice.auto_period}: what period = auto would choose", markup=False
        )
    else:
        console.print(
            "communication   give --step-time and --exchange-time for the share of time it takes", markup=False
        )
    if cluster is not None:
        console.print(table(cluster, shards, advice.period, advice.delay))
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
    run += f", delay k = {advice.delay}" if advice.delay > 1 else ""
    run += f", fragments P = {advice.fragments}" if advice.fragments > 1 else ""
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
            f"                in any order of the workers: up to h = {advice.any_order_curvature:.5g}"
            " (section 4 of the paper)"
        )
    alone = "MSGD" if advice.momentum else "SGD"
    for e, ratio in advice.variance.items():
        size = f"{ratio:.4g} of one worker's {alone} (1/p = {1 / advice.workers:.4g})"
        lines.append(
            f"variance        of the center at ηh = {e:.4g}: {size if ratio < math.inf else 'grows without bound'}"
        )
    if advice.workers > 1:  # a worker alone is not tied to a center
        lines.append(
            f"speed           of the center where the loss is almost flat: p/(p + 1) = {advice.speed:.4g} of one "
            f"worker's; as fast as one with η = {advice.lr / advice.speed:.4g}"
        )
    return lines + delays(advice)


def delays(advice: Advice) -> list[str]:
    """Return what the delay costs, or what one would cost."""
    e = advice.lr * advice.curvature if advice.curvature is not None else 0.1
    lines = [f"delay           at ηh = {e:.4g}, against k = 1:"] if advice.delay_costs else []
    for cost in advice.delay_costs:
        mark = " ←" if cost.delay == advice.delay else ""
        text = f"variance of the center × {cost.center:.4g}, of the workers × {cost.worker:.4g}"
        if not cost.radius < 1:
            text = "unstable"
        elif not cost.center < math.inf:
            text = "stable, while k = 1 is not"
        lines.append(
            f"                k = {cost.delay}: {text}; errors are multiplied by {cost.radius:.4g} a period{mark}"
        )
    return lines


def shares(advice: Advice) -> object:
    """Return the table of the time spent communicating over the period."""
    from rich.table import Table

    table = Table(title="share of time spent communicating")
    behind = "the next step" if advice.delay == 1 else f"{advice.delay} steps"
    for name in ("period τ", "waiting for it", f"waiting, if hidden behind {behind}"):
        table.add_column(name, justify="right")
    for share in advice.shares:
        mark = " ←" if share.period == advice.period else ""
        table.add_row(f"{share.period}{mark}", f"{share.waiting:.2%}", f"{share.hidden:.2%}")
    return table
