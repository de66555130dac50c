"""`easgd bench scale`, with small centers."""

from __future__ import annotations

import pytest

from easgd.bench import scale
from easgd.bench.shard_rates import measure


def test_a_line_through_the_work():
    """0.2 ms a request and 2 GB/s: 1 M parameters are 8 MB, 4 ms."""
    work = {(n, k): 2e-4 + 8 * n / 2e9 for n in (1000, 1_000_000, 25_000_000) for k in (1, 2)}
    request, byte = scale.line(work)
    assert (request, 1 / byte) == (pytest.approx(2e-4), pytest.approx(2e9))


@pytest.mark.heavy
@pytest.mark.timeout(200)
def test_a_shard_with_two_clients():
    rate = measure(1000, 2)
    assert (rate.parameters, rate.clients) == (1000, 2)
    assert min(rate.exchanges, rate.echoes, rate.work) > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows():
    """Slow for its processes: a shard and its clients for each case."""
    rows = scale.rows(parameters=(1000, 100_000), clients=(1,))
    assert [row.case for row in rows] == [
        "shard, 1,000 elements, 1 client",
        "shard's work, 1,000 elements, 1 client",
        "shard, 100,000 elements, 1 client",
        "shard's work, 100,000 elements, 1 client",
        "shared memory, 1,000 elements, 1 processes",
        "shared memory, 100,000 elements, 1 processes",
        "shared memory's work, 1,000 elements",
        "shared memory's work, 100,000 elements",
        "shard's work, a request of no bytes",
        "shard's work, bytes both ways",
        "shared memory's work, a request of no bytes",
        "shared memory's work, bytes both ways",
    ]
    assert all(row.ratio == pytest.approx(row.value / row.reference) for row in rows if "processes" not in row.case)
