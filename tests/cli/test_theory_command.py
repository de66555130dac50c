"""`easgd theory` as a user types it."""

import csv
import subprocess
import sys

import pytest

from easgd.cli import main


def test_help_of_every_command_has_an_example(capsys):
    assert main(["theory", "--help"]) == 0
    text = capsys.readouterr().out
    for command in ("advise", "fig1", "chaos", "mse-grid", "limit", "double-average", "figures"):
        assert command in text
        assert main(["theory", command, "--help"]) == 0
        assert f"example: easgd theory {command}" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from easgd.cli import main; main(['theory', '--help']); "
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")


def test_theory_does_not_import_torch():
    code = "import sys, easgd.theory; print('torch' in sys.modules, 'easgd.methods' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "False False\n"


def test_advice_is_printed(capsys):
    options = "--workers 16 --lr 0.01 --period 10 --momentum 0.99 --curvature 20 --step-time 0.1 --exchange-time 0.03"
    assert main(["theory", "advise", *options.split()]) == 0
    text = capsys.readouterr().out
    assert "α = 0.05625" in text
    assert "ρ = α/η = 5.625" in text
    assert "STABLE at curvature h = 20" in text
    assert "2.91%" in text  # 0.03/(10·0.1 + 0.03)
    assert "less than 1 % from period = 30" in text
    assert (
        main(["theory", "advise", *["--workers", "16", "--lr", "0.01", "--rho", "5.625", "--curvature", "2000"]]) == 0
    )
    text = capsys.readouterr().out
    assert "UNSTABLE" in text
    assert "(given: ρ)" in text
    assert "grows without bound" in text


def test_advice_says_what_a_delay_costs(capsys):
    from easgd.theory import delay_cost, period_for

    options = "--workers 4 --lr 0.01 --period 10 --momentum 0.99 --curvature 10 --step-time 0.1 --exchange-time 0.35"
    assert main(["theory", "advise", *options.split(), "--delay", "4"]) == 0
    text = capsys.readouterr().out
    cost = delay_cost("easgd", 4, 0.01, period=10, momentum=0.99, h=10.0, delay=4)
    assert f"k = 4: variance of the center × {cost.center:.4g}, of the workers × {cost.worker:.4g}" in text
    assert "from period = 5: what period = auto would choose" in text  # hidden: the shortest above the delay
    assert main(["theory", "advise", *options.split(), "--center-time", "0.3"]) == 0
    text = capsys.readouterr().out
    chosen = period_for(0.1, 0.35, workers=4, center_time=0.3, delay=4)
    assert f"hidden behind the next 4 steps, from period = {chosen}" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("advise --workers -3 --lr 0.1", "workers = -3"),
        ("advise --workers 3", "--lr"),
        ("advise --workers 3 --lr fast", "--lr = 'fast': it must be a number"),
        ("advise --workers 3 --lr 0.1 --colour 7", "unknown option '--colour'"),
        ("advise --workers 3 --lr 0.1 --beta 1 --rho 2", "give one of them"),
        ("advise --workers 3 --lr 0.1 --period 4 --delay 4", "delay = 4: must be below the period"),
        ("advise --workers 3 --lr 0.1 --fragments 0", "fragments = 0"),
        ("delay --period 2", "period = 2"),
        ("fig1 --points 0", "points = 0"),
        ("fig1 --points 5000", "points = 5000"),
        ("fig1 --workers 0", "workers = 0"),
        ("fig1 --workers", "--workers = nothing"),
        ("double-average --seed -1", "seed = -1"),
        ("mse-grid --points -4", "points = -4"),
        ("double-average --samples 0", "samples = 0"),
        ("limit --out /dev/null/here", "cannot be used as a folder"),
        ("advice", "did you mean 'advise'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(line, words, capsys):
    assert main(["theory", *line.split()]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "name", "rows"),
    [
        ("fig1 --points 12", "fig1", 144),
        ("chaos --ticks 300", "chaos", 31),
        ("mse-grid --points 6", "mse_grid", 25 * 36),
        ("limit", "limit", None),
        ("double-average --samples 50", "double_average", None),
        ("delay --workers 2 --period 4", "delay", 4 * 3),
        ("scale --workers 8 16", "scale", 3 * (2 + 2)),
    ],
)
def test_figures_are_png_pdf_and_csv(line, name, rows, tmp_path, capsys):
    assert main(["theory", *line.split(), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{name}.{kind}") for kind in ("png", "pdf", "csv")]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    with (tmp_path / f"{name}.csv").open() as file:
        table = list(csv.reader(file))
    assert len({len(row) for row in table}) == 1
    if rows is not None:
        assert len(table) == rows + 1


def test_figure_data_is_the_theory(tmp_path):
    from easgd.experiments.theory import chaos, fig1, limit
    from easgd.theory import admm_radius

    data = fig1.compute(points=4, workers=(3,))
    assert data.radius["ADMM", 3][1, 2] == pytest.approx(admm_radius(3, float(data.lr[2]), float(data.rho[1])))
    assert (data.radius["EASGD", 3] <= 1).all()
    run = chaos.compute(ticks=60_000)
    assert abs(run.center["ADMM"][-3:]).max() > 1e5  # left
    assert abs(run.center["EASGD"][-1]) < 1e-2  # came home
    late = limit.compute()
    for setting, values in late.scaled.items():
        assert values[-1] == pytest.approx(late.limit[setting], rel=2e-3)


def test_advice_says_how_far_a_run_scales(capsys):
    """64 workers, 36 MB: at τ = 10 a link of 1 Gbit/s would have to carry 64 (36/8 + 36/8) MB a second."""
    options = "--workers 64 --machines 8 --lr 0.01 --parameters 9000000 --link 1000 --step-time 0.1"
    assert main(["theory", "advise", *options.split()]) == 0
    text = capsys.readouterr().out
    assert "461% SATURATED" in text  # 64 · 9 MB / 125 MB/s
    assert "center per machine" in text
    assert "saturates at workers" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [("--link 100", "give --parameters"), ("--parameters 1000", "give --link"), ("--machines 2", "give --parameters")],
)
def test_advice_on_scale_needs_all_of_its_numbers(capsys, options, says):
    assert main(["theory", "advise", "--workers", "4", "--lr", "0.1", *options.split()]) == 2
    assert says in capsys.readouterr().err
