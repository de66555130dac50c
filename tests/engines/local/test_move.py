"""EASGD's exchange in one pass, between gradient and step: the same numbers as by message and answer."""

import numpy as np
import pytest
import torch
from torch import nn

import easgd
from easgd.kernels import fused
from easgd.worker import exchange

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


class ByMessage(easgd.EASGD):
    """Overrides a part of the exchange, so it is carried out as it is written."""

    def finish(self, replica, state, answer):
        super().finish(replica, state, answer)


class OwnSGD(torch.optim.SGD):
    pass


def groups(model, **first):
    return [{"params": model[0].parameters(), **first}, {"params": [*model[2].parameters(), model.unused]}]


OPTIMIZERS = {
    "SGD": (True, lambda m: torch.optim.SGD(groups(m), lr=0.1)),
    "SGD, l2": (True, lambda m: torch.optim.SGD(groups(m, weight_decay=0.02), lr=0.1, weight_decay=0.9)),
    "SGD, momentum": (True, lambda m: torch.optim.SGD(groups(m), lr=0.1, momentum=0.8)),
    "SGD, momentum, l2": (False, lambda m: torch.optim.SGD(groups(m), lr=0.1, momentum=0.8, weight_decay=0.9)),
    "SGD, l2 beyond bounds": (False, lambda m: torch.optim.SGD(groups(m), lr=0.1, weight_decay=6.0)),
    "Adam": (True, lambda m: torch.optim.Adam(groups(m), lr=0.1)),
    "Adam, l2": (False, lambda m: torch.optim.Adam(groups(m), lr=0.1, weight_decay=0.9)),
    "AdamW": (True, lambda m: torch.optim.AdamW(groups(m, lr=0.01), lr=0.1, weight_decay=0.9)),
    "RMSprop": (False, lambda m: torch.optim.RMSprop(groups(m), lr=0.01)),
    "a user's own": (False, lambda m: OwnSGD(groups(m), lr=0.1, weight_decay=0.9)),
}


def trained(folder, method, make, monkeypatch, closure=False):
    folder.mkdir()
    for name, value in {"EASGD_RUN": folder, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(exchange, "idle_cores", lambda workers: False)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model.unused = nn.Parameter(torch.ones(5))  # in the optimizer, without a gradient: no decay reaches it
    optimizer = make(model)
    worker = easgd.attach(model, optimizer, method)
    move, moves = worker.client.move, []
    worker.client.move = lambda parts, scale, fragment: moves.append(scale) or move(parts, scale, fragment)
    worker.client.segment.slots["x"].add_(1.0)  # a center far away: what is not exact shows

    def gradient():
        optimizer.zero_grad()
        loss = model(X).square().sum(1).mean()
        loss.backward()
        return loss

    for _ in range(7):
        if closure:
            optimizer.step(gradient)
        else:
            gradient()
            optimizer.step()
    center = worker.center()
    worker.close()
    return {**dict(model.named_parameters()), **{f"center {name}": value for name, value in center.items()}}, len(moves)


def test_with_idle_cores_the_exchange_is_hidden_instead(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_RUN", str(tmp_path))
    monkeypatch.setenv("EASGD_RANK", "0")
    monkeypatch.setenv("EASGD_WORKERS", "3")
    monkeypatch.setattr("easgd.worker.worker.GATHER_SECONDS", 0.0)
    for idle, overlap, hides, moves in [
        (True, "auto", True, False), (False, "auto", True, True),
        (False, True, True, False), (False, False, False, False),
    ]:  # fmt: skip
        monkeypatch.setattr(exchange, "idle_cores", lambda workers, idle=idle: idle)
        model = nn.Linear(2, 2)
        worker = easgd.attach(model, torch.optim.SGD(model.parameters(), 0.1), easgd.EASGD(), overlap=overlap)
        assert (worker.exchange.hides, worker.exchange.moves) == (hides, moves)
        worker.close()


def test_cores_are_idle_where_workers_with_their_threads_do_not_use_them_all(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert exchange.idle_cores(3)
    assert not exchange.idle_cores(4)


def test_overlap_is_checked():
    model = nn.Linear(2, 2)
    with pytest.raises(easgd.SettingError, match="overlap = maybe"):
        easgd.attach(model, torch.optim.SGD(model.parameters(), 0.1), easgd.EASGD(), overlap="maybe")


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_pass_gives_the_numbers_of_message_and_answer(name, closure, tmp_path, monkeypatch):
    expected, make = OPTIMIZERS[name]
    settings = {"period": 2, "moving_rate": 0.3}
    ours, moved = trained(tmp_path / "a", easgd.EASGD(**settings), make, monkeypatch, closure)
    theirs, messages = trained(tmp_path / "b", ByMessage(**settings), make, monkeypatch, closure)
    assert (moved, messages) == (4 if expected and not closure else 0, 0)
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-5, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")


def test_a_move_is_both_ends_of_the_spring():
    """By hand: x = 3, x̃ = 1, α = 1/4: d = 1/2, x̃ = 3/2, and x = 3 − 2·(1/2) = 2 with a gain of 2. Σd² = n/4."""
    x, center = np.full(40_000, 3, np.float32), np.ones(40_000, np.float32)
    assert fused.move_(x, center, fused.f32(0.25), fused.f32(2)) == 10_000
    assert (x == 2).all()
    assert (center == 1.5).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_a_move_ends_before_what_is_not_finite(poison):
    x, center = np.full(40_000, 3, np.float32), np.ones(40_000, np.float32)
    x[20_000] = poison
    assert fused.move_(x, center, fused.f32(0.25), fused.f32(1)) == np.inf
    # Elsewhere every element is before the exchange or after it, with its other end.
    rest = np.arange(40_000) != 20_000
    moved = center[rest] == 1.5
    assert (x[rest] == np.where(moved, 2.5, 3)).all()
    assert (center[rest] == np.where(moved, 1.5, 1)).all()
    assert 10_000 < moved.sum() <= 20_000
    assert (center[20_000:] == 1).all()


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 4096, 5000, 6143])
def test_a_move_of_any_length(size):
    generator = np.random.default_rng(size)
    x, center = (generator.standard_normal(size).astype(np.float32) for _ in range(2))
    d = (x.astype(np.float64) - center) * 0.3
    mine, shared = x.copy(), center.copy()
    assert fused.move_(mine, shared, fused.f32(0.3), fused.f32(1.25)) == pytest.approx((d * d).sum(), rel=1e-5)
    np.testing.assert_allclose(mine, x - 1.25 * d, atol=1e-6)
    np.testing.assert_allclose(shared, center + d, atol=1e-6)


@pytest.mark.parametrize("place", [0, 2047, 2048, 4999])
def test_a_move_stops_at_its_own_block(place):
    x, center = np.full(5000, 3, np.float32), np.ones(5000, np.float32)
    x[place] = np.nan
    assert fused.move_(x, center, fused.f32(0.25), fused.f32(1)) == np.inf
    assert (center == 1.5).sum() == place // 2048 * 2048


def test_a_move_has_the_same_bits_wherever_its_blocks_begin():
    generator = np.random.default_rng(1)
    x, center = (generator.standard_normal(9000).astype(np.float32) for _ in range(2))
    whole = x.copy(), center.copy()
    fused.move_(*whole, fused.f32(0.3), fused.f32(1.1))
    for a, b in ((0, 1000), (1000, 7500), (7500, 9000)):
        fused.move_(x[a:b], center[a:b], fused.f32(0.3), fused.f32(1.1))
    assert np.array_equal(whole[0], x)
    assert np.array_equal(whole[1], center)
