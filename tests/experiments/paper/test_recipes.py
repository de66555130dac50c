"""Recipes as data: what they would run, how long they would take, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from PIL import Image

from easgd.cli import main
from easgd.data import load
from easgd.experiments.paper import estimate
from easgd.experiments.paper.images import make_photographs
from easgd.experiments.paper.make import on_photographs, sweep_of
from easgd.experiments.paper.rates import CIFAR, IMAGENET
from easgd.experiments.paper.recipes import RECIPES
from easgd.experiments.paper.scales import SCALES
from easgd.training.config import Config


def configs(name, scale):
    return sweep_of(RECIPES[name], SCALES[scale]).configs


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.grid])
def test_every_recipe_multiplies_out_to_runs_that_the_library_accepts(name, scale):
    found = configs(name, scale)
    assert found
    assert all(config.seconds or config.steps for config in found)
    assert all(config.engine == ("local" if name == "breakdown" else "simulate") for config in found)


def test_figure_2_is_the_papers_grid():
    found = configs("fig2", "paper")
    # Five methods at four periods, MDOWNPOUR at τ = 1 and MSGD alone; three rates, three seeds.
    assert len(found) == (5 * 4 + 1 + 1) * 3 * 3
    assert {c.workers for c in found if c.method != "msgd"} == {4}
    assert {c.period for c in found if c.method == "mvadownpour"} == {1, 4, 16, 64}
    assert {c.period for c in found if c.method == "mdownpour"} == {1}
    assert {c.lr for c in found if c.method == "eamsgd"} == {0.01, 0.005, 0.001}
    assert {c.momentum for c in found if c.momentum is not None} == {0.99}
    assert {c.init_seed for c in found} == {0}


def test_figure_2_on_a_laptop_has_the_papers_periods_and_a_common_time():
    found = [c for c in configs("fig2", "laptop") if c.method not in ("msgd", "mdownpour")]
    assert len(found) == 5 * 4
    assert {c.period for c in found} == {1, 4, 16, 64}
    assert min(c.seconds or 0 for c in found) == 60


def test_figure_3_has_the_papers_periods_and_workers():
    found = configs("fig3", "paper")
    periods = {c.method: c.period for c in found}
    assert periods == {"msgd": 1, "easgd": 10, "eamsgd": 10, "downpour": 1, "mdownpour": 1}
    assert {c.workers for c in found} == {1, 4, 8, 16}


def test_the_headlines_runs_are_runs_of_figure_3_and_of_the_speed_up():
    for scale in SCALES:
        assert set(configs("headline", scale)) <= set(configs("fig3", scale))
        assert configs("speedup", scale) == configs("fig3", scale)


def test_laptop_takes_one_rate_of_the_papers_and_the_papers_network():
    for config in configs("fig3", "laptop"):
        assert config.lr == (0.005 if config.method == "eamsgd" else max(CIFAR["paper"][config.method]))
        assert (config.data, config.network, config.batch) == ("cifar10", "cifar", 128)


def test_on_a_laptop_rates_and_workers_are_watched_for_one_time():
    """Where they are compared: η for each method of the supplement's figure, p for EASGD in figure 3."""
    for method, seconds in (("easgd", 30), ("eamsgd", 24)):
        found = [c for c in configs("eta", "laptop") if c.method == method]
        assert {c.lr for c in found} == set(CIFAR["paper"][method])
        assert {c.seconds for c in found} == {seconds}
    assert {(c.workers, c.seconds) for c in configs("fig3", "laptop") if c.method == "easgd"} == {
        (4, 30),
        (8, 30),
        (16, 30),
    }


def test_smoke_takes_the_rates_of_digits():
    for config in configs("fig2", "smoke"):
        assert config.lr == Config(method=config.method, data="digits", steps=1).resolved().lr


def test_imagenet_rates_are_the_papers():
    found = {(c.method, c.workers): c for c in configs("fig4", "paper")}
    assert found["downpour", 4].lr == 0.02
    assert found["downpour", 8].lr == 0.01
    assert found["eamsgd", 8].lr == 0.001
    assert {c.decay for c in found.values()} == {"stagnation"}
    assert {c.weight_decay for c in found.values()} == {1e-5}


def photographs(folder):
    """Two classes in ImageNet's layout, wide and tall, as JPEG files."""
    for split in ("train", "val"):
        for number, (name, size) in enumerate({"cat": (300, 260), "dog": (256, 400)}.items()):
            place = folder / split / name
            place.mkdir(parents=True)
            Image.new("RGB", size, (80 * number, 90, 100)).save(place / "one.jpg")
    return folder


@pytest.mark.parametrize("name", ["fig4", "sequential-imagenet"])
def test_photographs_go_through_the_papers_network_at_its_rates(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "data"))
    scale = on_photographs(RECIPES[name], SCALES["smoke"], photographs(tmp_path / "mine"))
    found = sweep_of(RECIPES[name], scale).configs
    assert {(c.network, c.data, c.momentum or 0.99) for c in found} == {("imagenet", scale.photos, 0.99)}
    rates = {(c.method, c.workers): c.lr for c in found}
    assert rates.items() <= IMAGENET["paper"].items()
    # A worker's steps, of 1.26 virtual seconds, come to the center at least twice: else nothing of it would be seen.
    assert all(2 * c.steps_between < c.seconds / 1.26 for c in found)
    made = load(scale.photos, "train")
    assert scale.photos.startswith("photos-mine-")
    assert sorted(made.image(k).shape for k in range(2)) == [(256, 295, 3), (400, 256, 3)]  # shorter sides of 256


def test_photographs_that_were_changed_are_another_data_set(tmp_path, monkeypatch):
    """Else a folder of the same name would be trained on silently in the place of this one."""
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "data"))
    one, other = photographs(tmp_path / "one" / "mine"), photographs(tmp_path / "other" / "mine")
    first = make_photographs(one)
    assert make_photographs(one) == first
    assert make_photographs(other) != first
    (one / "train" / "cat" / "one.jpg").rename(one / "train" / "cat" / "two.jpg")
    assert make_photographs(one) != first


def test_the_forecast_counts_the_images_of_a_set_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "data"))
    assert estimate._images(make_photographs(photographs(tmp_path / "mine"))) == (2, 2)
    assert estimate._images("cifar10") == (50_000, 10_000)
    assert estimate._images("not-made-yet") == (2000, 1000)


def test_gradients_follow_the_virtual_clock():
    # paper-cifar: 28.75 ms compute + 3.5 ms data, alone and without exchanges: 31 steps a virtual second.
    alone = Config(method="sgd", engine="simulate", seconds=32.25).resolved()
    assert estimate.gradients(alone, 10) == pytest.approx(1000)
    # Four workers share the loaders: 3.92 ms; an exchange every 10 steps costs two latencies of 1.145 ms.
    four = Config(method="easgd", workers=4, period=10, engine="simulate", seconds=10).resolved()
    assert estimate.gradients(four, 0) == pytest.approx(4 * 10 / (0.02875 + 0.00392 + 0.000229))


def test_a_long_time_is_written_in_a_fitting_unit():
    assert [estimate.words(s) for s in (5, 120, 5400, 3 * 86400, 1e9)] == [
        "5 s",
        "2.0 min",
        "1.5 h",
        "3.0 days",
        "32 years",
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fig9"], "unknown recipe 'fig9'"),
        (["fig2", "--scale", "huge"], "unknown scale 'huge'"),
        (["fig2", "--jobs", "0"], "--jobs = 0"),
        (["fig2", "--sclae", "smoke"], "did you mean '--scale'?"),
        (["--scale", "smoke"], "no recipe given"),
        (["fig2", "--out"], "--out = nothing"),
        (["headline", "--scale", "laptop"], "easgd data make cifar10"),
        (["fig4", "--scale", "paper"], "easgd data make folder"),
        (["fig4", "--scale", "paper", "--photos", "mine"], "paper scale is ImageNet itself"),
        (["fig2", "--photos", "mine"], "fig2 trains on no photographs"),
        (["fig4", "--photos", "mine"], "mine"),
    ],
)
def test_bad_input_is_one_line(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "no-data"))
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *argv]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("easgd: error: ")
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_help_needs_neither_torch_nor_matplotlib():
    code = (
        "import sys; from easgd.cli import main; main(['paper', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in RECIPES)


def test_list_names_every_recipe_and_says_what_was_measured(capsys):
    assert main(["paper", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in RECIPES)
    assert "measured just now" in said
