"""Numbers on a page follow from the measurements beside it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import easgd
from easgd.cli import main
from easgd.experiments.paper.numbers import PAGES, Formulas, numbers
from easgd.records import Step

ROOT = Path(__file__).parents[3]
ROWS = [
    {"time": 0.0, "steps": 0, "bytes": 0, "train_loss": 2.0, "test_error": 0.9},
    {"time": 10.1, "steps": 12_345, "bytes": 1_000_000, "train_loss": 1.5, "test_error": 0.42},
    {"time": 20.2, "steps": 24_690, "bytes": 2_000_000, "train_loss": 1.0, "test_error": 0.25},
]


@pytest.fixture
def page(tmp_path):
    for name, rows in (("slow", ROWS), ("fast", [{**row, "time": row["time"] / 4} for row in ROWS])):
        folder = tmp_path / "laptop/recipe/runs" / name
        folder.mkdir(parents=True)
        (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "workers.csv").write_text("time,loss,distance,staleness\n2.525,1.75,0.5,3\n")
    return tmp_path / "README.md"


@pytest.mark.parametrize(("page", "least"), [*zip(PAGES, (100, 10, 2, 3, 2), strict=True)])
def test_every_number_of_the_pages_on_the_paper(page, least):
    found = numbers(ROOT / page)
    assert len(found) >= least
    assert [number for number in found if number.text != number.right] == []


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ('time_to("recipe/slow", 42)', 10.1),
        ('sooner("recipe/fast", "recipe/slow", 25)', 4.0),
        ('error("recipe/slow", 10)', 42.0),
        ('loss("recipe/slow", 20)', 1.0),
        ('best("recipe/slow") - last("recipe/slow")', 0.0),
        ('gradients("recipe/slow") / megabytes("recipe/slow")', 12_345.0),
        ('worker_loss("recipe/fast", 2.5) + distance("recipe/fast", 2.5)', 2.25),
    ],
)
def test_formulas_by_hand(page, formula, value):
    assert Formulas(page.parent).value(formula) == pytest.approx(value)


def test_the_share_of_communication_is_that_of_the_records(page):
    """Of 8 seconds that two workers had together, 1 went into exchanges."""
    folder = page.parent / "laptop/recipe/runs/slow"
    for rank, spent in enumerate((0.25, 0.75)):
        step = Step(rank, 1, 4.0, compute=3.0, data=0.5, communication=spent, waiting=0.0)
        with gzip.open(folder / f"records-{rank}-0.jsonl.gz", "wt") as file:
            file.write(json.dumps(step.as_dict()) + "\n")
    assert Formulas(page.parent).value('communication("recipe/slow")') == pytest.approx(100 / 8)


@pytest.mark.parametrize("records", ["", "reproduction", "docs/reproduction"])
def test_a_page_elsewhere_may_cite_the_measurements(page, records, tmp_path):
    """As README.md and docs/settings.md do."""
    folder = tmp_path / "tree"
    (folder / records).mkdir(parents=True, exist_ok=True)
    (tmp_path / "laptop").rename(folder / records / "laptop")
    citing = folder / "README.md"
    citing.write_text('42.0<!--= error("recipe/slow", 10) -->\n')
    assert [number.right for number in numbers(citing)] == ["42.0"]


def test_settled_is_the_first_of_three_in_a_row(tmp_path):
    errors = [0.9, 0.5, 0.2, 0.4, 0.2, 0.25, 0.1, 0.3]
    folder = tmp_path / "laptop/recipe/runs/jumps"
    folder.mkdir(parents=True)
    lines = [json.dumps({"time": float(k), "test_error": error}) for k, error in enumerate(errors)]
    (folder / "evaluations.jsonl").write_text("\n".join(lines))
    formulas = Formulas(tmp_path)
    assert formulas.value('time_to("recipe/jumps", 25)') == 2.0
    assert formulas.value('settled("recipe/jumps", 25)') == 4.0
    assert formulas.value('settled("recipe/jumps", 25, 2)') == 2.0, "of 0, 2, 4, 6 s the last three"


def test_a_wrong_number_is_named_and_mended(page, capsys):
    page.write_text('At 43.0<!--= error("recipe/slow", 10) --> % after 24 690<!--= gradients("recipe/slow") -->.\n')
    assert main(["paper", "check", "--page", str(page)]) == 1
    assert f"{page}:1: 43.0 should be 42.0" in capsys.readouterr().out
    assert main(["paper", "check", "--page", str(page), "--write"]) == 0
    assert page.read_text().startswith("At 42.0<!--= ")
    assert main(["paper", "check", "--page", str(page)]) == 0


def test_a_number_before_it_is_no_part_of_it(page, capsys):
    page.write_text('With η = 0.0005 43.0<!--= error("recipe/slow", 10) --> % are left.\n')
    assert main(["paper", "check", "--page", str(page), "--write"]) == 0
    assert page.read_text().startswith("With η = 0.0005 42.0<!--= ")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("last('recipe/none')", "there are no measurements"),
        ("time_to('recipe/slow', 3)", "was never at 3 %"),
        ("settled('recipe/slow', 42)", "was never at 42 % three times in a row"),  # only twice
        ("error('recipe/slow', 15)", "nothing was measured at 15 s"),
        ("eror('recipe/slow', 10)", "did you mean 'error'"),
        ("__import__('os').getpid()", "only calls, numbers, texts"),
        ("last(", "formula 'last\\('"),
    ],
)
def test_a_formula_that_cannot_be_is_one_line(page, formula, why):
    page.write_text(f"\n1<!--= {formula} -->\n")
    with pytest.raises(easgd.SettingError, match=why) as error:
        numbers(page)
    assert "line 2" in str(error.value)
