"""Compressed exchanges on the virtual clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import easgd
from easgd.compress import Codec

N = 3000
COARSE = ("int4", "int2", "topk")
TARGET = torch.linspace(-1, 1, N)


def noisy(x, worker, step):
    rng = np.random.default_rng([worker, step])
    return x - TARGET + torch.from_numpy(rng.standard_normal(N).astype(np.float32)) * 0.01


def simulate(method, compression, **how):
    sim = easgd.Simulation(noisy, torch.zeros(N), method, lr=0.1, workers=3, compression=compression, **how)
    records = []
    sim.on_record = records.append
    return sim, records


# Three blocks of at most 1024; of topk one block, a fortieth of it.
SIZES = {"bf16": 2 * N, "int8": N + 4 * 3, "int4": N // 2 + 4 * 3, "int2": N // 4 + 8 * 3, "topk": 3 * 75 + 4}


@pytest.mark.parametrize("compression", SIZES)
@pytest.mark.parametrize("method", [easgd.EASGD(period=2), easgd.EAMSGD(period=3, momentum=0.5), easgd.Downpour(3)])
def test_rounding_does_not_pile_up(method, compression):
    """The compressed run ends where the plain one does, to less than a percent, and sends as few bytes as it says."""
    if compression == "topk" and not method.is_elastic:
        pytest.skip("a delay of forty exchanges is beyond what this rate allows: docs/cluster.md")
    plain, _ = simulate(method, None)
    packed, records = simulate(method, compression)
    for sim in (plain, packed):
        sim.run(1500 if compression == "topk" else 300)
    assert torch.dist(plain.center.x, packed.center.x) < 0.01 * plain.center.x.norm()
    size, exchanges = SIZES[compression], sum(1 for r in records if r.bytes)
    # The first x̃ of each of the three workers comes in full; the first position is sent in full by a coarse codec.
    in_full = 0 if method.is_elastic and compression in ("bf16", "int8") else 3
    assert sum(r.bytes for r in records) == 2 * size * exchanges + in_full * (4 * N - size) > 0


@pytest.mark.parametrize("compression", ["int8", "int4", "int2", "topk"])
def test_an_elastic_exchange_conserves_the_sum(compression):
    """x −= d̂ and x̃ += d̂ with the same rounded d̂: Σxⁱ + x̃ does not move when there is no gradient."""
    start = torch.linspace(-1, 1, N)
    sim = easgd.Simulation(lambda x, worker, step: torch.zeros(N), start, easgd.EASGD(period=1), lr=0.1, workers=2,
                           compression=compression)  # fmt: skip
    for k, worker in enumerate(sim.workers):
        worker.state.replica.write_(start * (k + 2.0))
    before = sim.center.x + sum(worker.state.local() for worker in sim.workers)
    sim.run(40)
    after = sim.center.x + sum(worker.state.local() for worker in sim.workers)
    assert torch.allclose(before, after, atol=1e-5)
    assert not torch.allclose(sim.center.x, start, atol=0.1)  # and the spring did pull


@pytest.mark.parametrize("codec", ["int8", "int2", "topk"])
@pytest.mark.parametrize("method", [easgd.EASGD(period=2), easgd.MDownpour(momentum=0.5)])
def test_a_saved_run_goes_on_with_the_same_bits(tmp_path, method, codec):
    whole, _ = simulate(method, codec, schedule="async")
    whole.run(40)
    first, _ = simulate(method, codec, schedule="async")
    first.run(17)
    first.save(tmp_path / "state")
    second, _ = simulate(method, codec, schedule="async")
    second.load(tmp_path / "state")
    second.run(23)
    assert torch.equal(whole.center.x, second.center.x)


@pytest.mark.parametrize("compression", ["int8", "int2"])
def test_a_compressed_round_against_a_loop(compression):
    """LocalSGD, τ = 2: changes with error feedback go there, the change of x̃ since its last answer comes back."""
    codec, rounds, p = Codec.named(compression), 12, 3
    sim, records = simulate(easgd.LocalSGD(period=2), compression, schedule="sync")
    sim.run(2 * rounds + 1)
    center, rest, known = torch.zeros(N), [torch.zeros(N) for _ in range(p)], [None] * p
    x = [torch.zeros(N) for _ in range(p)]
    for step in range(2 * rounds):
        for w in range(p):
            x[w] = x[w] - 0.1 * noisy(x[w], w, step)
        if step % 2:
            total = torch.zeros(N)
            for w in range(p):
                message = x[w] - (torch.zeros(N) if known[w] is None else known[w]) + rest[w]
                sent = codec.decode(codec.encode(message), N)
                rest[w] = message - sent
                total += sent / p
            center = center + total
            for w in range(p):
                known[w] = center if known[w] is None else known[w] + codec.decode(codec.encode(center - known[w]), N)
                x[w] = known[w]
    # Where the last bit of a sum differs, a few elements are rounded to the neighbouring code.
    assert torch.dist(sim.center.x, center) < 1e-4 * center.norm()
    size = SIZES[compression]
    assert sum(r.bytes for r in records) == p * (2 * size * rounds + 4 * N - size)


def test_what_cannot_be_compressed_is_refused():
    with pytest.raises(easgd.SettingError, match="sent in full"):
        simulate(easgd.EASGD(), "int8", schedule="sync")
    with pytest.raises(easgd.SettingError, match="float32"):
        easgd.Simulation(lambda x, w, t: x, torch.zeros(3, dtype=torch.float64), easgd.EASGD(), lr=0.1, workers=2,
                         compression="int8")  # fmt: skip
    with pytest.raises(easgd.SettingError, match="did you mean"):
        simulate(easgd.EASGD(), "int9")


def digits(compression, seed):
    """Test error of the center of four workers on digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def batch(worker, step):
        return torch.randint(0, 1500, (32,), generator=torch.Generator().manual_seed(10**6 * seed + 10 * step + worker))

    def loss(model, rows):
        return torch.nn.functional.cross_entropy(model(x[rows]), y[rows])

    gradient = easgd.ModelGradient(model, loss, batch)
    sim = easgd.Simulation(gradient, gradient.x0, easgd.EASGD(period=2), lr=0.2, workers=4, compression=compression)
    sim.run(4 * 150)
    torch.nn.utils.vector_to_parameters(sim.center.x, model.parameters())
    return float((model(x[1500:]).argmax(1) != y[1500:]).float().mean())


def test_few_bits_train_digits_as_well_as_int8():
    torch.set_num_threads(1)
    errors = {codec: torch.tensor([digits(codec, seed) for seed in range(2)]) for codec in ("int8", *COARSE)}
    noise = max(0.015, float(errors["int8"].std()))
    for codec in COARSE:
        assert errors[codec].mean() < errors["int8"].mean() + 2 * noise, errors
