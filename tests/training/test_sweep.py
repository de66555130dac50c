"""Settings multiplied out, and what is refused."""

import pytest

from easgd.errors import SettingError
from easgd.training.sweep import load_sweep, make_sweep


def names(sweep):
    return [(c.method, c.workers, c.period, c.lr, c.seed) for c in sweep.configs]


def test_lists_multiply_and_groups_go_before_what_stands_above(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(
        'engine = "simulate"\nsteps = 10\nseed = [0, 1]\nlevels = [0.1]\nbaseline = "msgd"\njobs = 2\n'
        '[[runs]]\nmethod = "msgd"\nlr = [0.1, 0.2]\n'
        '[[runs]]\nmethod = "easgd"\nworkers = [2, 4]\nperiod = 5\nlr = 0.3\nseed = 7\n'
    )
    sweep = load_sweep(file)
    assert names(sweep) == [
        ("msgd", 1, 1, 0.1, 0), ("msgd", 1, 1, 0.2, 0), ("msgd", 1, 1, 0.1, 1), ("msgd", 1, 1, 0.2, 1),
        ("easgd", 2, 5, 0.3, 7), ("easgd", 4, 5, 0.3, 7),
    ]  # fmt: skip
    assert (sweep.levels, sweep.baseline, sweep.jobs) == ([0.1], "msgd", 2)
    assert {c.steps for c in sweep.configs} == {10}
    assert {c.init_seed for c in sweep.configs} == {0}  # one initial point for all


def test_flags_go_before_the_file(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('steps = 10\n[[runs]]\nmethod = "msgd"\nseed = [0, 1]\n')
    assert [(c.steps, c.seed) for c in load_sweep(file, {"seed": "3", "steps": ["20"]}).configs] == [(20, 3)]


def test_what_a_method_does_not_have_is_left_out_for_it():
    grid = {"method": ["msgd", "easgd", "mdownpour"], "workers": [2, 4], "period": [1, 8], "beta": 0.5}
    assert names(make_sweep({**grid, "momentum": 0.5})) == [
        ("msgd", 1, 1, 0.05, 0),
        ("easgd", 2, 1, 0.2, 0), ("easgd", 2, 8, 0.2, 0), ("easgd", 4, 1, 0.2, 0), ("easgd", 4, 8, 0.2, 0),
        ("mdownpour", 2, 1, 0.01, 0), ("mdownpour", 4, 1, 0.01, 0),
    ]  # fmt: skip
    assert [c.momentum for c in make_sweep({**grid, "momentum": 0.5}).configs] == [0.5, *[None] * 4, 0.5, 0.5]


def test_what_a_group_says_of_its_one_method_must_fit():
    with pytest.raises(SettingError, match="sequential"):
        make_sweep({"runs": [{"method": "msgd", "workers": 4}]})
    with pytest.raises(SettingError, match="momentum"):
        make_sweep({"runs": [{"method": "easgd", "momentum": 0.9}]})


def test_the_same_run_is_there_once():
    assert (
        len(make_sweep({"runs": [{"method": "easgd", "lr": [0.1, 0.1]}, {"method": "easgd", "lr": 0.1}]}).configs) == 1
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metod = 'easgd'", "unknown key in .*did you mean 'method'"),
        ("[[runs]]\nworker = 4", r"unknown key in \[\[runs\]\].*did you mean 'workers'"),
        ("level = 0.1", "did you mean 'levels'"),
        ("method = 'eassgd'", "unknown method 'eassgd'.*did you mean 'easgd'"),
        ("lr = 'fast'", "lr = 'fast'"),
        ("workers = 0", "workers = 0"),
        ("seed = []", r"seed = \[\]"),
        ("levels = [21]", "levels"),
        ("jobs = 0", "jobs = 0"),
        ("runs = 3", "write \\[\\[runs\\]\\]"),
        ("method = ", "it is no TOML"),
        ("baseline = 3", "baseline"),
        ("baseline = 'mgsd'\nmethod = ['msgd', 'easgd']", "unknown baseline 'mgsd'.*did you mean 'msgd'"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, words):
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=words) as caught:
        load_sweep(file)
    assert len(str(caught.value).splitlines()) == 1
