"""`easgd bench scale`: how many exchanges a center bears in a second, by its size and the number of its clients.

    shard           a shard of a cluster's center behind its sockets, against a plain socket that sends the bytes back
    shard's work    processor time of its process for one exchange, against the time between two exchanges
    shared memory   the center of one machine, against a loop with the same memory accesses; and its work

Work is processor time: on a machine that does other things too it is surer than a rate. Clients and shard share this
machine; where the shard has one of its own, its work bounds the rate. The last rows are straight lines through the
work: what a request costs whatever its size, and the bytes of message and answer that are worked off in a second. The
simulator and `easgd theory advise` compute with such lines.
"""

from __future__ import annotations

import numpy as np
import torch

from easgd.bench import Row
from easgd.bench.exchange import processor_time, together
from easgd.bench.shard_rates import ShardRate, measure

SIZES = (10_000, 1_000_000, 25_000_000)
CLIENTS = (1, 2, 8)


def rows(parameters: tuple[int, ...] = SIZES, clients: tuple[int, ...] = CLIENTS) -> list[Row]:
    """Measure every size with every number of clients."""
    from rich.progress import track

    torch.set_num_threads(1)
    cases = [(n, k) for n in parameters for k in clients]
    shards = [measure(n, k) for n, k in track(cases, "shard", transient=True)]
    memory = [together(n, k) for n, k in track(cases, "shared memory", transient=True)]
    out = [row for shard in shards for row in _shard_rows(shard)]
    out += [Row(f"shared memory, {row.case}", row.value, row.unit, row.reference, row.ratio) for row in memory]
    work = {n: processor_time(n) for n in parameters}
    for n, (ours, limit) in work.items():
        case = f"shared memory's work, {n:,} elements"
        out.append(Row(case, 1e3 * ours, "ms an exchange", 1e3 * limit, ours / limit))
    if len(parameters) > 1:
        small, large = min(work), max(work)
        tcp = max(rate.echoes * 8 * large for rate in shards if rate.parameters == large)
        echo = max(rate.echoes for rate in shards if rate.parameters == small)
        out += _line("shard's work", {(r.parameters, r.clients): r.work for r in shards}, 1 / echo, tcp)
        limits = work[small][1], 8 * large / work[large][1]
        out += _line("shared memory's work", {(n, 1): ours for n, (ours, _) in work.items()}, *limits)
    return out


def _shard_rows(rate: ShardRate) -> list[Row]:
    who = f"{rate.parameters:,} elements, {rate.clients} client{'s' if rate.clients > 1 else ''}"
    work, between = 1e3 * rate.work, 1e3 / rate.exchanges
    return [
        Row(f"shard, {who}", rate.exchanges, "exchanges/s", rate.echoes, rate.exchanges / rate.echoes),
        Row(f"shard's work, {who}", work, "ms an exchange", between, work / between),
    ]


def line(work: dict[tuple[int, int], float]) -> tuple[float, float]:
    """Return the seconds of a request and of a byte that fit the work, by parameters and clients, best.

    A byte is one of the 8 that each parameter has in message and answer.
    """
    seconds, sizes = np.array(list(work.values())), np.array([8.0 * n for n, _ in work])
    # Relative errors count: milliseconds of a large vector must not drown microseconds of a small one.
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    request, byte = np.linalg.lstsq(terms, np.ones_like(seconds), rcond=None)[0]
    return max(0.0, float(request)), float(byte)


def _line(name: str, work: dict[tuple[int, int], float], least: float, most: float) -> list[Row]:
    """Return the two numbers of the line, against the seconds of a small and the bytes/s of a large reference."""
    request, byte = line(work)
    return [
        Row(f"{name}, a request of no bytes", 1e3 * request, "ms", 1e3 * least, request / least),
        Row(f"{name}, bytes both ways", 1e-9 / byte, "GB/s", 1e-9 * most, 1 / byte / most),
    ]
