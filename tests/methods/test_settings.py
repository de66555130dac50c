"""Bad input: one line with the value, the bound and what to write instead."""

import pytest
import torch

import easgd
from easgd.errors import SettingError

ONE = torch.ones(1)


def simulate(method=None, **kwargs):
    kwargs = {"lr": 0.1, "workers": 2, "steps": 1, **kwargs}
    return easgd.simulate(lambda x, w, s: x, ONE, method or easgd.EASGD(), **kwargs)


BAD = {
    "period 0": (lambda: easgd.EASGD(period=0), "period = 0", "write period=1"),
    "period 2.5": (lambda: easgd.Downpour(period=2.5), "period = 2.5", "write period=1"),
    "beta and rho": (lambda: easgd.EASGD(beta=0.9, rho=1.0), "beta = 0.9 and rho = 1.0", "exactly one"),
    "all three": (lambda: easgd.EAMSGD(beta=1, rho=1, moving_rate=0.1), "moving_rate = 0.1", "exactly one"),
    "alpha 1": (lambda: easgd.EASGD(moving_rate=1.0), "moving_rate = 1.0", "write moving_rate="),
    "alpha 0": (lambda: easgd.EASGD(moving_rate=0.0), "moving_rate = 0.0", "write beta=0.9"),
    "negative rho": (lambda: easgd.EASGD(rho=-1), "rho = -1", "write"),
    "beta too large": (lambda: simulate(easgd.EASGD(beta=2.0)), "beta = 2.0", "write beta below 2"),
    "rho too large": (lambda: simulate(easgd.EASGD(rho=20), lr=0.1), "rho = 20", "write rho below 10"),
    "momentum 1": (lambda: easgd.EAMSGD(momentum=1.0), "momentum = 1.0", "write momentum=0.99"),
    "easgd momentum": (lambda: easgd.EASGD(momentum=0.9), "momentum = 0.9", "write EAMSGD(momentum=0.9)"),
    "sgd momentum": (lambda: easgd.SGD(momentum=0.9), "momentum = 0.9", "write MSGD(momentum=0.9)"),
    "downpour momentum": (lambda: easgd.Downpour(momentum=0.9), "momentum = 0.9", "write MDownpour(momentum=0.9)"),
    "unknown": (lambda: easgd.ASGD(tau=3), "tau = 3", "it takes period, average"),
    "mdownpour period": (lambda: easgd.MDownpour(period=4), "period = 4", "write period=1"),
    "sgd period": (lambda: easgd.SGD(period=4), "period = 4", "leave it out"),
    "fragments 0": (lambda: easgd.EASGD(fragments=0), "fragments = 0", "write fragments=1"),
    "fragments beyond the period": (lambda: easgd.EASGD(period=4, fragments=8), "fragments = 8", "write fragments=4"),
    "fragments that do not divide": (lambda: easgd.EASGD(fragments=3), "fragments = 3", "write period=12"),
    "fragments of sgd": (lambda: easgd.SGD(fragments=2), "fragments = 2", "leave it out"),
    "fragments of mdownpour": (lambda: easgd.MDownpour(fragments=2), "fragments = 2", "write fragments=1"),
    "fragments beyond the elements": (lambda: simulate(easgd.EASGD(fragments=2)), "fragments = 2", "1 elements"),
    "delay -1": (lambda: easgd.EASGD(delay=-1), "delay = -1", "write delay=1"),
    "delay 0": (lambda: easgd.EAMSGD(delay=0), "delay = 0", "write delay=1"),
    "delay 1.5": (lambda: easgd.EASGD(delay=1.5), "delay = 1.5", "write delay=1"),
    "delay beyond the period": (lambda: easgd.EASGD(period=4, delay=4), "delay = 4", "write delay=3"),
    "delay of downpour": (lambda: easgd.Downpour(period=4, delay=1), "delay = 1", "leave it out"),
    "delay of sgd": (lambda: easgd.SGD(delay=2), "delay = 2", "leave it out"),
    "admm rho": (lambda: easgd.ADMM(0.0), "rho = 0.0", "write rho=1.0"),
    "average": (lambda: easgd.averaged(easgd.EASGD(), 2.0), "average = 2.0", 'write average="mean"'),
    "two averages": (lambda: easgd.averaged(easgd.MVADownpour(), 0.5), "average = 0.5", "write rate="),
    "rate": (lambda: easgd.MVADownpour(rate=0.0), "rate = 0.0", "write rate=0.001"),
    "workers 0": (lambda: simulate(workers=0), "workers = 0", "write workers=1"),
    "workers of sgd": (lambda: simulate(easgd.SGD(), workers=4), "workers = 4", "write workers=1"),
    "lr": (lambda: simulate(lr=-0.1), "lr = -0.1", "write lr=0.01"),
    "steps": (lambda: simulate(steps=-1), "steps = -1", "write steps=100"),
    "schedule": (lambda: simulate(schedule="asynch"), "unknown schedule 'asynch'", "did you mean 'async'?"),
    "sync schedule": (lambda: simulate(easgd.EASGD(sync=True)), "schedule = round-robin", 'write "sync"'),
    "preset": (lambda: simulate(cost="paper-cifr"), "unknown cost preset", "did you mean 'paper-cifar'?"),
    "latency": (lambda: easgd.CostModel(latency=-1), "latency = -1", "write latency=0.0"),
    "compute": (lambda: easgd.CostModel(compute=0), "compute = 0", "write compute=1.0"),
    "fault": (lambda: easgd.Fault(0, 1.0, "explode"), "unknown fault 'explode'", "choose one"),
    "pause": (lambda: easgd.Fault(0, 1.0, "pause"), "amount = 0.0", "write amount=10.0"),
    "fault's worker": (lambda: simulate(faults=[easgd.Fault(5, 1.0, "death")]), "worker = 5", "write a join"),
    "gamma": (lambda: easgd.decay(-1), "gamma = -1", "write gamma="),
    "warmup": (lambda: easgd.decay(0, warmup=-1), "warmup = -1", "write warmup="),
    "drop": (lambda: easgd.decay(0, warmup=20, drop=20), "drop = 20", "write drop=40"),
    "drop 0": (lambda: easgd.decay(0, drop=0), "drop = 0", "write drop=1000"),
    "nonfinite": (lambda: simulate(nonfinite="ignore"), "unknown policy nonfinite 'ignore'", "choose one"),
    "unstable lr": (lambda: simulate(lr=0.3, curvature=10.0), "lr = 0.3", "use lr below 0.1"),
    "unstable alpha": (
        lambda: simulate(easgd.EASGD(period=1, moving_rate=0.9), curvature=15.0), "moving_rate = 0.9", "use lr below",
    ),
    "unstable sync": (
        lambda: simulate(easgd.EASGD(period=1, beta=1.9), curvature=15.0, schedule="sync"),
        "moving_rate = 0.95", "lower moving_rate (or beta)",
    ),
    "unstable momentum": (
        lambda: simulate(easgd.MSGD(momentum=0.9), workers=1, lr=1.0, curvature=5.0), "momentum = 0.9", "use lr below",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    call, value, remedy = BAD[case]
    with pytest.raises(SettingError) as caught:
        call()
    text = str(caught.value)
    assert value in text
    assert remedy in text
    assert "\n" not in text


def test_describe_prints_all_three_as_used():
    assert easgd.EASGD(period=10).describe(workers=4, lr=0.01) == ("EASGD: τ = 10, β = 0.9 (set), α = 0.225, ρ = 22.5")
    assert easgd.EASGD(rho=2.0).describe(4, 0.1) == "EASGD: τ = 10, β = 0.8, α = 0.2, ρ = 2 (set)"
    assert "α = 0.2 (set), ρ = α/η" in easgd.EAMSGD(moving_rate=0.2).describe()
    text = easgd.EASGD(fragments=5, delay=3).describe(4)
    assert text.startswith("EASGD: τ = 10, 5 fragments in turn, answers used after 3 steps, β = 0.9 (set)")
    assert easgd.averaged(easgd.Downpour(period=4)).describe() == "DOWNPOUR: τ = 4, average of the center: mean"


def test_methods_are_values():
    assert easgd.EASGD(period=3) == easgd.EASGD(period=3, beta=0.9)
    assert hash(easgd.EASGD()) == hash(easgd.EASGD())
    with pytest.raises(AttributeError):
        easgd.EASGD().period = 3


def test_the_elastic_methods_exchange_every_ten_steps_unless_told():
    """EAMSGD has two bases with different defaults; its period must be the spring's."""
    assert easgd.EASGD().period == easgd.EAMSGD().period == 10
    assert easgd.Downpour().period == easgd.MVADownpour().period == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench --bogus simulator", "unknown option '--bogus'"),
        ("bench overhead --engine", "--engine = nothing"),
        ("bench simulator loader", "2 benchmarks given"),
        ("doctor foo", "doctor takes no arguments"),
        ("paper fig2 --plain=yes", "--plain takes no value"),
        ("paper fig2 list", "list stands alone"),
        ("paper list --jobs x", "--jobs = 'x'"),
        ("compare --methods easgd,msgd --baseline foo", "unknown baseline 'foo'"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(line, words, capsys):
    from easgd.cli import main

    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"seed": null}', "seed = None: it must be a whole number"),
        ('{"seed": true}', "seed = True: it must be a whole number"),
        ('{"workers": 0}', "workers = 0: it must be at least 1"),
        ('{"lr": [1]}', "lr = [1]: it must be a number"),
        ('{"engine": null}', "engine = None: it must be one of local, simulate, ray"),
        ('{"data": {"a": 1}}', "data = {'a': 1}: it must be a text"),
        ('{"settings": {"a": [1]}}', "settings = "),
        ('{"period": 1, "perod": 2}', "did you mean 'period'?"),
        ("[1]", "it holds no table of settings"),
        ("{", "it is no JSON"),
        ('{"a": ' + "[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_bad_file_is_one_line_and_no_traceback(text, words, tmp_path, capsys):
    from easgd.cli import main

    (tmp_path / "bad.json").write_text(text)
    assert main(["train", "--config", str(tmp_path / "bad.json")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_numbers_are_read_as_they_are_written():
    config = easgd.Config.from_dict({"steps": "1e3", "lr": 1, "moving-rate": "0.1", "network": None})
    assert (config.steps, config.lr, config.moving_rate, config.network) == (1000, 1.0, 0.1, None)
    assert isinstance(config.lr, float)
    assert easgd.Config.from_dict(config.as_dict()) == config


def test_every_command_has_help_with_an_example(capsys):
    from easgd.cli import COMMANDS, main

    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        assert f"example: easgd {command}" in capsys.readouterr().out


def test_names_of_option_classes_are_unique():
    import re
    from pathlib import Path

    tree = Path(easgd.__file__).parent / "cli"
    found = [name for path in tree.glob("*.py") for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)]
    assert len(found) == len(set(found))
