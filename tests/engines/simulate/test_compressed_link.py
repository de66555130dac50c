"""Compressed exchanges on the virtual clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import easgd

N = 3000
TARGET = torch.linspace(-1, 1, N)


def noisy(x, worker, step):
    rng = np.random.default_rng([worker, step])
    return x - TARGET + torch.from_numpy(rng.standard_normal(N).astype(np.float32)) * 0.01


def simulate(method, compression, **how):
    sim = easgd.Simulation(noisy, torch.zeros(N), method, lr=0.1, workers=3, compression=compression, **how)
    records = []
    sim.on_record = records.append
    return sim, records


@pytest.mark.parametrize("compression", ["bf16", "int8"])
@pytest.mark.parametrize("method", [easgd.EASGD(period=2), easgd.EAMSGD(period=3, momentum=0.5), easgd.Downpour(3)])
def test_rounding_does_not_pile_up(method, compression):
    """The compressed run ends where the plain one does, to less than a percent, and sends as few bytes as it says."""
    plain, _ = simulate(method, None)
    packed, records = simulate(method, compression)
    for sim in (plain, packed):
        sim.run(300)
    assert torch.dist(plain.center.x, packed.center.x) < 0.01 * plain.center.x.norm()
    size = {"bf16": 2 * N, "int8": N + 4 * 3}[compression]  # three blocks of at most 1024
    exchanges = sum(1 for r in records if r.bytes)
    assert sum(r.bytes for r in records) == 2 * size * exchanges > 0


def test_an_elastic_exchange_conserves_the_sum():
    """x −= d̂ and x̃ += d̂ with the same rounded d̂: Σxⁱ + x̃ does not move when there is no gradient."""
    start = torch.linspace(-1, 1, N)
    sim = easgd.Simulation(lambda x, worker, step: torch.zeros(N), start, easgd.EASGD(period=1), lr=0.1, workers=2,
                           compression="int8")  # fmt: skip
    for k, worker in enumerate(sim.workers):
        worker.state.replica.write_(start * (k + 2.0))
    before = sim.center.x + sum(worker.state.local() for worker in sim.workers)
    sim.run(40)
    after = sim.center.x + sum(worker.state.local() for worker in sim.workers)
    assert torch.allclose(before, after, atol=1e-5)
    assert not torch.allclose(sim.center.x, start, atol=0.1)  # and the spring did pull


@pytest.mark.parametrize("method", [easgd.EASGD(period=2), easgd.MDownpour(momentum=0.5)])
def test_a_saved_run_goes_on_with_the_same_bits(tmp_path, method):
    whole, _ = simulate(method, "int8", schedule="async")
    whole.run(40)
    first, _ = simulate(method, "int8", schedule="async")
    first.run(17)
    first.save(tmp_path / "state")
    second, _ = simulate(method, "int8", schedule="async")
    second.load(tmp_path / "state")
    second.run(23)
    assert torch.equal(whole.center.x, second.center.x)


def test_what_cannot_be_compressed_is_refused():
    with pytest.raises(easgd.SettingError, match="sent in full"):
        simulate(easgd.EASGD(), "int8", schedule="sync")
    with pytest.raises(easgd.SettingError, match="float32"):
        easgd.Simulation(lambda x, w, t: x, torch.zeros(3, dtype=torch.float64), easgd.EASGD(), lr=0.1, workers=2,
                         compression="int8")  # fmt: skip
    with pytest.raises(easgd.SettingError, match="did you mean"):
        simulate(easgd.EASGD(), "int9")
