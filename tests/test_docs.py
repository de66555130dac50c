"""Every code block of the documentation runs, or, where the page says why not, is parsed with all its options."""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import easgd
from doc_blocks import ROOT, blocks, command_lines, pages
from easgd.cli import COMMANDS, bench_link, main
from easgd.records import Event, Step
from easgd.training.config import Config

ALL = [block for page in pages() for block in blocks(page)]
PYTHON = sorted({block.page for block in ALL if block.language in ("python", "diff")})
SHELL = [block for block in ALL if block.language == "sh"]
SHOWN = [block for block in ALL if block.language == "text" and block.text.startswith("$ easgd ")]
# Pages that are written by a command: their blocks repeat what took hours.
ARCHIVE = "docs/reproduction/laptop/"


def surroundings() -> dict[str, object]:
    """Return what a page may take for granted: a model, its optimizer, some data."""
    model = nn.Linear(4, 2)
    x, y = torch.randn(64, 4), torch.randint(2, (64,))
    return {
        "__name__": "docs", "torch": torch, "nn": nn, "easgd": easgd, "math": math, "model": model, "x": x, "y": y,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "loader": DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True),
        "cross_entropy": nn.functional.cross_entropy,
        "validation_loss": lambda model: nn.functional.cross_entropy(model(x), y).item(),
    }  # fmt: skip


def run_python(text: str, names: dict[str, object]) -> None:
    """Run a block; an expression followed by its value as a comment must have it."""
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "docs", "exec", dont_inherit=True), names)
            continue
        value = eval(compile(ast.Expression(statement.value), "docs", "eval", dont_inherit=True), names)
        comment = lines[(statement.end_lineno or 1) - 1][statement.end_col_offset or 0 :].strip()
        if number := re.match(r"# (-?\d+\.\d+)…", comment):
            unit = 10.0 ** -len(number[1].partition(".")[2])
            assert abs(float(value) - float(number[1])) <= unit, (comment, value)
        elif comment in ("# True", "# False"):
            assert repr(value) == comment.removeprefix("# ")


@pytest.mark.parametrize("page", PYTHON)
def test_python(page, tmp_path, monkeypatch, shared):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "docs", ModuleType("docs"))  # dataclasses look for the module of a class
    names = surroundings()
    state = torch.get_rng_state()
    for block in ALL:
        if block.page == page and block.language in ("python", "diff"):
            compile(block.program, str(block), "exec")
            if not block.why and not page.startswith(ARCHIVE):
                run_python(block.program, names)
    for value in names.values():
        if isinstance(value, easgd.Worker):
            value.close()
    torch.set_rng_state(state)


def parse_easgd(words: list[str]) -> None:
    """Parse a command line of easgd with all its options, as the command itself does."""
    if words in (["--version"], ["--help"]):
        return
    assert words[0] in COMMANDS, words
    module = importlib.import_module(COMMANDS[words[0]][0])
    rest = words[1:]
    if words[:2] == ["bench", "link"]:
        bench_link.COMMAND.parse(rest[1:])
    elif hasattr(module, "COMMANDS"):
        command, rest = module.COMMANDS.find(rest)
        command.parse(rest)
    else:
        _, settings = module.COMMAND.parse_all(rest)
        if words[0] == "train":
            known = {name: value for name, value in settings.items() if ":" not in str(value) and name != "settings"}
            Config.from_dict(known)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_command_lines(block, tmp_path, monkeypatch, capsys, shared):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EASGD_DATA", str(tmp_path / "data"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for words in command_lines(block.text):
        if words[0] == "easgd":
            parse_easgd(words[1:])
            if not block.why and not block.page.startswith(ARCHIVE):
                assert main(words[1:]) == 0, capsys.readouterr().err
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif words[0] == "pip":
            for extra in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
                assert set(extra.split(",")) <= set(project["optional-dependencies"]), words


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_shown_output_is_the_output(block, capsys):
    command, *shown = block.text.splitlines()
    assert main(command.split()[2:]) == 0
    output = capsys.readouterr().out
    for line in shown:
        assert line == "…" or line in output, f"{block}: {line}"


def test_every_block_without_a_mark_is_of_a_language_that_is_tested():
    languages = {block.language for block in ALL}
    assert languages <= {"", "python", "sh", "text", "toml", "diff", "json", "markdown"}
    for block in ALL:
        if block.language == "toml":
            tomllib.loads(block.text)


def test_the_schema_of_records_names_every_field():
    text = (ROOT / "docs" / "records.md").read_text()
    for kind in (Step, Event):
        assert [f.name for f in fields(kind) if f"| `{f.name}` |" not in text] == []


def test_a_list_has_an_empty_line_above_it():
    """The site's Markdown would join it to the paragraph; a code browser would not, so nobody would notice."""
    item = re.compile(r"(?:[-*]|\d+\.) |\|")
    for page in pages():
        text = re.sub(r"^```.*?^```", "```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for above, line in itertools.pairwise(text.splitlines()):
            if item.match(line) and above and not above.startswith((" ", "#", "<!--")):
                assert item.match(above), f"{page}: {line}"


def test_a_page_is_marked_only_where_there_is_a_block():
    for page in pages():
        marks = len(re.findall(r"^<!-- parsed: ", page.read_text(), re.MULTILINE))
        assert marks == sum(bool(block.why) for block in blocks(page)), page


def test_the_readme_fits_three_screens_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 140
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert "docs/start.md" in links
    assert [link for link in links if ":" not in link and not (ROOT / link).exists()] == []


@pytest.mark.slow
def test_start_in_five_minutes(tmp_path, shared):
    """The script of the first page, launched on four processes, leaves a center."""
    (script,) = (b.text for b in ALL if b.page == "docs/start.md" and b.language == "python" and not b.why)
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "easgd", "launch", "-n", "4", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test error of the center") == 4
    assert len(list(tmp_path.glob("runs/*/center.safetensors"))) == 1
