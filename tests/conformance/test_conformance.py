"""Every method on every schedule: it runs, stays finite, repeats bit for bit, and goes on from a saved state.

Every registered method is here with its own defaults, and those of the table with settings that show more.
"""

import pytest
import torch

import easgd
import problems
from easgd.methods import registry

REGISTERED = {key: registry.get(key) for key in registry.names()}
CASES = {
    **{key: (m(**m.presets), 1 if m.sequential else 3) for key, m in REGISTERED.items()},
    "easgd": (easgd.EASGD(period=3, beta=0.8), 3),
    "easgd-sync": (easgd.EASGD(period=3, beta=0.8, sync=True), 3),
    "eamsgd": (easgd.EAMSGD(period=2, moving_rate=0.3, momentum=0.7), 3),
    "downpour": (easgd.Downpour(period=2), 3),
    "mdownpour": (easgd.MDownpour(momentum=0.5), 3),
    "adownpour": (easgd.ADownpour(period=2), 3),
    "mvadownpour": (easgd.MVADownpour(period=2, rate=0.1), 3),
    "admm": (easgd.ADMM(0.5), 3),
    "admm-period": (easgd.ADMM(0.5, period=3), 3),
    "averaged-easgd": (easgd.averaged(easgd.EASGD(period=2)), 3),
    "averaged-admm": (easgd.averaged(easgd.ADMM(0.5), rate=0.2), 3),
    "localsgd": (easgd.LocalSGD(period=3), 3),
    "localsgd-async": (easgd.LocalSGD(period=3, sync=False, first_phase=4), 3),
    "diloco": (easgd.DiLoCo(period=3), 3),
    "diloco-sgd": (easgd.DiLoCo(period=3, outer="sgd", outer_lr=0.5, outer_momentum=0.5, first_phase=4), 3),
    "diloco-adam": (easgd.averaged(easgd.DiLoCo(period=3, outer="adam")), 3),
    "asyncdiloco": (easgd.AsyncDiLoCo(period=3, every=2, staleness=0.5), 3),
    "asyncdiloco-nesterov": (easgd.averaged(easgd.AsyncDiLoCo(period=2), rate=0.2), 3),
    "easgd-delay": (easgd.EASGD(period=4, beta=0.8, delay=3), 3),
    "eamsgd-fragments": (easgd.EAMSGD(period=6, moving_rate=0.3, momentum=0.7, fragments=3, delay=5), 3),
    "adownpour-fragments": (easgd.ADownpour(period=4, fragments=2), 3),
    "admm-fragments": (easgd.ADMM(0.5, period=2, fragments=2), 3),
    "sgd": (easgd.SGD(), 1),
    "msgd": (easgd.MSGD(momentum=0.7), 1),
    "asgd": (easgd.ASGD(), 1),
    "mvasgd": (easgd.MVASGD(rate=0.1), 1),
}
COST = easgd.CostModel(jitter=0.3, latency=0.2, bandwidth=1e3, service=0.15, data=0.1)
SCHEDULES = ["round-robin", "sync", "async"]


PAIRS = [(n, s) for n, (m, _) in CASES.items() for s in SCHEDULES if problems.fits(m, s)]
X0 = torch.linspace(-1, 2, 5, dtype=torch.float64)


def g(x, worker, step):
    noise = torch.Generator().manual_seed(1000 * worker + step)
    return 0.5 * x + torch.randn(5, generator=noise, dtype=torch.float64)


def scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(0.1))


def start(name, schedule, records=None, **kwargs):
    method, workers = CASES[name]
    return easgd.Simulation(
        g, X0, method, lr=0.05, workers=workers, schedule=schedule, cost=COST, scheduler=scheduler, seed=3,
        on_record=None if records is None else records.append, **kwargs,
    )  # fmt: skip


def snapshot(sim):
    return [sim.center.x.clone(), *(worker.state.local().clone() for worker in sim.workers), torch.tensor(sim.time)]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "schedule"), PAIRS)
def test_runs_moves_and_repeats(name, schedule):
    first, second = [], []
    a, b = start(name, schedule, first), start(name, schedule, second)
    assert a.run(40) == b.run(40) == 40
    assert same(snapshot(a), snapshot(b))
    assert [r.as_dict() for r in first] == [r.as_dict() for r in second]
    assert a.center.x.isfinite().all()
    assert not torch.equal(a.center.x, X0)
    assert a.center.average is None or not torch.equal(a.center.average, a.center.x)


@pytest.mark.parametrize(("name", "schedule"), PAIRS)
@pytest.mark.parametrize("at", [0, 1, 17])
def test_goes_on_from_a_saved_state_with_the_same_bits(name, schedule, at, tmp_path):
    faults = [easgd.Fault(0, 9.0, "slow", 2.0), easgd.Fault(0, 12.0, "pause", 3.0)]
    whole = start(name, schedule, faults=faults)
    whole.run(40)
    broken = start(name, schedule, faults=faults)
    broken.run(at)
    broken.save(tmp_path / "state.safetensors")
    resumed = start(name, schedule, faults=faults)
    resumed.load(tmp_path / "state.safetensors")
    resumed.run(40 - at)
    assert same(snapshot(whole), snapshot(resumed))


PARALLEL = ("easgd", "eamsgd", "downpour", "admm", "sgd", "localsgd", "diloco", "asyncdiloco", "eamsgd-fragments")


@pytest.mark.parametrize(("name", "schedule"), [(n, s) for n, s in PAIRS if n in PARALLEL])
def test_gradients_in_parallel_give_the_same_bits(name, schedule):
    alone, together = start(name, schedule), start(name, schedule, parallel=2)
    alone.run(40)
    together.run(40)
    together.gradients.close()
    assert same(snapshot(alone), snapshot(together))


@pytest.mark.parametrize(("name", "schedule"), [(n, s) for n, s in PAIRS if CASES[n][1] > 1])
def test_a_worker_dies_and_comes_back(name, schedule):
    faults = [easgd.Fault(1, 7.3, "death"), easgd.Fault(1, 11.0, "join"), easgd.Fault(0, 14.2, "death")]
    sim = start(name, schedule, faults=faults)
    assert sim.run(60) == 60
    assert [worker.alive for worker in sim.workers] == [False, True, True]
    assert sim.workers[1].state.incarnation == 1
    assert sim.center.x.isfinite().all()
    assert sim.center.x.norm() < 10


def test_a_state_of_other_settings_is_refused(tmp_path):
    sim = start("easgd", "async")
    sim.save(tmp_path / "state")
    with pytest.raises(easgd.SettingError, match="saved with EASGD"):
        start("downpour", "async").load(tmp_path / "state")
    with pytest.raises(easgd.SettingError, match="saved with async"):
        start("easgd", "round-robin").load(tmp_path / "state")
