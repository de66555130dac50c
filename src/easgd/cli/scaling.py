"""The part of `easgd theory advise` that says how far a run scales: shards, period, speed, bytes, saturation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from easgd.errors import refuse

if TYPE_CHECKING:
    from easgd.theory import Cluster, Scale

OPTIONS = ("machines", "parameters", "link", "latency", "shards", "compression")


def cluster_of(settings: dict[str, Any]) -> Cluster | None:
    """Take the options of this part out of the settings; None where it was not asked for."""
    from easgd.compress import Codec
    from easgd.theory import Cluster

    own = {name: settings.pop(name) for name in OPTIONS}
    if own["parameters"] is None:
        for name in ("machines", "link", "shards", "compression"):
            if own[name] is not None:
                raise refuse(name, own[name], "how far a run scales depends on the model", "give --parameters too")
        return None
    if own["link"] is None or settings["step_time"] is None:
        have = {name: value for name, value in (("link", own["link"]), ("step_time", settings["step_time"])) if value}
        raise refuse("parameters", own["parameters"], f"given with {have or 'no times'}", "give --link and --step-time")
    if own["shards"] is not None and own["shards"] < 1:
        raise refuse("shards", own["shards"], "the center has at least one", "write --shards 1")
    settings["shards"] = own["shards"]
    return Cluster(
        workers=settings["workers"],
        machines=settings["workers"] if own["machines"] is None else own["machines"],
        parameters=own["parameters"],
        step_time=settings["step_time"],
        link=own["link"] * 1e6 / 8,
        latency=own["latency"],
        bytes_per_parameter=Codec.named(own["compression"]).bytes(own["parameters"]) / own["parameters"],
    )


def table(cluster: Cluster, shards: int | None, period: int, delay: int) -> object:
    """Return the ways to run on this cluster as a table."""
    from rich.table import Table

    from easgd.theory import scale

    out = Table(title=f"{cluster.workers} workers on {cluster.machines} machines, {cluster.parameters:,} parameters")
    out.add_column("", no_wrap=True)
    ways = {
        f"τ = {period}": scale(cluster, levels=False, shards=shards, period=period, delay=delay),
        "τ as advised": scale(cluster, levels=False, shards=shards, delay=delay),
    }
    if cluster.workers > cluster.machines > 1:
        ways["center per machine"] = scale(cluster, levels=True, shards=shards, delay=delay)
    for name in ways:
        out.add_column(name, justify="right", no_wrap=True)
    for name in _cells(next(iter(ways.values()))):
        out.add_row(name, *(_cells(way)[name] for way in ways.values()))
    return out


def _cells(way: Scale) -> dict[str, str]:
    c = way.cluster
    data_parallel = 2 * 8 * c.parameters * (c.machines - 1) / c.machines / c.step_time
    return {
        "shards S": f"{way.shards}",
        "period τ": f"{way.period}",
        "machine's period T": f"{way.upward}" if way.levels else "–",
        "exchange by network": f"{c.exchange_time(way.shards):.3g} s",
        "a shard's bottleneck": way.bottleneck,
        "… is busy": f"{way.busy:.0%}" if way.busy < 1 else f"{way.busy:.0%} SATURATED",
        "a worker waits": f"{way.waiting:.1%}",
        "steps/s, all workers": f"{way.speed:,.4g}",
        "MB/s, one machine": f"{way.network_bytes / 1e6:,.3g}",
        "… data-parallel": f"{data_parallel / way.network_bytes:,.3g} ×" if c.machines > 1 else "–",
        "saturates at workers": f"{way.most_workers:,}",
    }
