"""The generated pages: reference, command line, examples, notebooks, changelog."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstrings import as_markdown  # beside this file

ROOT = Path(__file__).resolve().parents[2]
PROJECT = {"CHANGELOG.md": "project/changelog.md", "CONTRIBUTING.md": "project/contributing.md"}
LANGUAGES = {".py": "python", ".toml": "toml"}
# Page of the reference -> title, introduction, and the modules whose public names it has.
REFERENCE = {
    "scripts": ("Scripts and functions", "What a training script calls.", ("attach", "Worker", "run", "Result")),
    "simulate": (
        "Simulator", "[The simulator](../simulator.md) says what it models.",
        ("simulate", "Simulation", "Trajectory", "CostModel", "Fault", "ModelGradient"),
    ),
    "training": (
        "Training and reports", "[Training](../training.md) says what a run leaves on disk.",
        ("train", "resume", "Run", "Config", "compare", "write_report", "decay", "Stagnation"),
    ),
    "errors": ("Errors", "", ("SettingError", "NonFiniteError", "CenterLostError")),
}  # fmt: skip
PACKAGES = {
    "theory": ("Theory", "[Theory as tools](../theory.md) tells the story.", "easgd.theory"),
    "data": ("Data", "[Data and networks](../data.md) has the file format and the sampling.", "easgd.data"),
    "models": ("Models", "The paper's networks, and small ones for tests and demos.", "easgd.models"),
}
INTEGRATIONS = {
    "lightning": ("ElasticAveraging",),
    "transformers": ("ElasticAveragingCallback", "ElasticTrainerMixin"),
    "observables": ("Observables",),
    "trackers": ("TensorBoard", "WandB", "MLflow"),
}


@functools.cache
def generated() -> dict[str, str]:
    """Return the generated pages by their path in the site."""
    made = {"reference/index.md": _index(), "reference/command-line.md": _command_line()}
    made["reference/methods.md"] = _methods()
    for page, (title, words, names) in REFERENCE.items():
        made[f"reference/{page}.md"] = _page(title, words, map(_address, names))
    for page, (title, words, package) in PACKAGES.items():
        names = getattr(importlib.import_module(package), "__all__", None) or dir(importlib.import_module(package))
        public = [name for name in names if not name.startswith("_")]
        made[f"reference/{page}.md"] = _page(title, words, (f"{package}.{name}" for name in public))
    made["reference/integrations.md"] = _page(
        "Integrations", "[Other training loops](../integrations.md) has them side by side.",
        (f"easgd.integrations.{module}.{name}" for module, names in INTEGRATIONS.items() for name in names),
    )  # fmt: skip
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (*LANGUAGES, ".ipynb"):
            made[str(place(f"examples/{path.name}"))] = _notebook(path) if path.suffix == ".ipynb" else _source(path)
    for path in linked():
        made[str(place(path))] = _source(ROOT / path)
    for name, page in PROJECT.items():
        if (ROOT / name).exists():
            made[page] = (ROOT / name).read_text(encoding="utf-8")
    return made


def place(path: str) -> str | None:
    """Return the page of the site that shows a file of the repository."""
    if path in PROJECT:
        return PROJECT[path]
    if path == "README.md":
        return "index.md"
    stem, suffix = posixpath.splitext(path)
    if path.startswith("examples/") and suffix == ".ipynb":
        return f"notebooks/{posixpath.basename(stem)}.md"
    if suffix in LANGUAGES:
        return f"{stem}-{suffix[1:]}.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def linked() -> list[str]:
    """Return the files of source outside docs/ and examples/ that the documentation links to."""
    found = set()
    for page in (ROOT / "docs").rglob("*.md"):
        folder = page.parent.relative_to(ROOT).as_posix()
        for target in re.findall(r"\]\((\.\./[^)#\s]+)", page.read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(folder, target))
            if (
                Path(path).suffix in LANGUAGES
                and not path.startswith(("docs/", "examples/"))
                and (ROOT / path).exists()
            ):
                found.add(path)
    return sorted(found)


def origin(page: str) -> str:
    """Return the folder of the repository that the links of a generated page are relative to."""
    folder = posixpath.dirname(page)
    return {"project": ".", "notebooks": "examples"}.get(folder, posixpath.join("docs", folder))


def _address(name: str) -> str:
    """Return where a public name of `easgd` is defined: the reference reads the source there."""
    found = getattr(importlib.import_module("easgd"), name)
    return f"{found.__module__}.{name}"


def _page(title: str, words: str, addresses: Iterator[str]) -> str:
    return f"# {title}\n\n{words}\n\n" + "\n".join(f"::: {address}\n" for address in addresses)


def _equations() -> dict[str, str]:
    """The typeset equations of docs/equations.md by the names of its headings, "LocalSGD and DiLoCo" under both."""
    found = {}
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    for heading, body in re.findall(r"^## ([^\n]+)\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        found |= {name.lower(): body for name in heading.split(" and ")}
    averages = ("adownpour", "mvadownpour", "asgd", "mvasgd")
    return found | dict.fromkeys(averages, found["time averages"])


def _methods() -> str:
    """Every method with its equations, typeset and as they stand on top of its file."""
    from easgd.methods import registry

    equations = _equations()
    parts = [
        "# Methods\n\n[Methods](../methods.md) has the settings of each family and a method of your own; "
        "[the equations](../equations.md) are set there. A method is passed to `easgd.attach`, `easgd.simulate` or "
        "`easgd.train`.\n"
    ]
    for method in sorted(map(registry.get, registry.built_in()), key=lambda method: method.order):
        parts.append(f"## {method.__name__}\n")
        parts.append(f"{equations[method.key]}\n")
        parts.append(f"{as_markdown(inspect.getdoc(inspect.getmodule(method)) or '')}\n")
        parts.append(f"::: {method.__module__}.{method.__name__}\n    options:\n      heading_level: 3\n")
    for name in ("Method", "averaged", "register"):
        parts.append(f"::: {_address(name)}\n")
    return "\n".join(parts)


def _index() -> str:
    rows = ["# Reference", "", "| page | names |", "|---|---|"]
    pages = {
        **{page: (title, ", ".join(f"`easgd.{name}`" for name in names))
           for page, (title, _, names) in REFERENCE.items()},
        "methods": ("Methods", "`easgd.EASGD`, `easgd.EAMSGD`, … every method, `easgd.Method`, `easgd.averaged`, "
                    "`easgd.register`"),
        **{page: (title, f"`{package}`") for page, (title, _, package) in PACKAGES.items()},
        "integrations": ("Integrations", "`easgd.integrations`"),
        "command-line": ("Command line", "`easgd train`, `easgd launch`, …"),
    }  # fmt: skip
    rows += [f"| [{title}]({page}.md) | {names} |" for page, (title, names) in pages.items()]
    return "\n".join(rows) + "\n"


def _command_line() -> str:
    """The help of every command, from its parser."""
    from easgd.cli import COMMANDS, usage

    os.environ["COLUMNS"] = "100"
    parts = [
        "# Command line", "`python -m easgd` is the same as `easgd`. Wrong input ends with one line and exit code 2.",
        f"```text\n{usage()}```",
    ]  # fmt: skip
    for name, (module, _) in COMMANDS.items():
        found = importlib.import_module(module)
        commands = [getattr(found, "COMMANDS", None) or found.COMMAND]
        if name == "bench":
            commands.append(importlib.import_module("easgd.cli.bench_link").COMMAND)
        for each in commands:
            parts += _help(each, 2)
    return "\n\n".join(parts) + "\n"


def _help(command: Any, level: int) -> list[str]:
    heading = f"{'#' * level} easgd {command.name}"
    if not hasattr(command, "commands"):
        return [heading, f"```text\n{command.parser().format_help()}```"]
    inner = [part for each in command.commands.values() for part in _help(each, min(level + 1, 4))]
    return [heading, f"```text\n{command.usage()}```", *inner]


def _source(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return f"# {path.name}\n\n```{LANGUAGES[path.suffix]}\n{text}```\n"


def _notebook(path: Path) -> str:
    """A notebook as a page: texts as they are, code as blocks, printed outputs below them."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            shown = "".join(output.get("text", output.get("data", {}).get("text/plain", ())))
            if shown:
                parts.append(f"```text\n{shown}\n```")
    return "\n\n".join([*parts, f"The notebook is `examples/{path.name}` of the repository."]) + "\n"
