"""docs/faults.md cites tests, and tests cite its numbers: both must be there."""

import json
import re
import runpy
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "faults.md").read_text()
CITED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))


@pytest.mark.parametrize(("path", "name"), CITED)
def test_every_test_in_the_table_exists(path, name):
    assert f"\ndef {name}(" in (TESTS / path).read_text()


def test_every_row_names_a_test():
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
    assert [row for row in rows if "::" not in row] == []


def test_the_figures_in_the_table_are_those_that_were_measured():
    tool = runpy.run_path(str(TESTS.parent / "tools" / "fault_figures.py"))
    rows = json.loads((TESTS.parent / "docs" / "faults.json").read_text())
    assert tool["filled"](TABLE, tool["figures"](rows)) == TABLE, "python tools/fault_figures.py writes them"


def test_every_number_that_tests_cite_is_in_the_table():
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)}
    for path in TESTS.rglob("*.py"):
        for numbers in re.findall(r"\bCases? (\d+(?:, \d+)*)", path.read_text()):
            assert set(map(int, numbers.split(", "))) <= listed, path
