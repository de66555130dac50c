"""`easgd doctor`: what this machine can do, and what to install; `--bug` for a report, `--history` for a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.cli.parsing import Command
from easgd.errors import SettingError
from easgd.settings import option

if TYPE_CHECKING:
    from easgd.cli.findings import Finding

SECTIONS = {
    "machine": "Machine",
    "measured": "Measured",
    "software": "Software",
    "extras": "Optional packages",
    "data_sets": "Data sets",
    "runs": "Runs on this machine",
}
QUESTIONS = ("What did you run? (the command, or the script)", "What happened?", "What did you expect?")


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `easgd doctor`."""

    bug: bool = option("print a block to paste into a bug report", False)
    json: bool = option("print everything as one JSON object for programs", False)
    history: Path | None = option("replay the exchanges of a run that was started with --history", metavar="RUN")


COMMAND = Command(
    "doctor", DoctorOptions, "Print what this machine offers to easgd, and what to install.",
    ["doctor", "doctor --bug", "doctor --history runs/a"],
    "It measures memory and a loopback connection for about a second, and changes nothing.\n"
    "With --history: exit code 0 if every exchange of the run follows, 1 with the first that does not, 2 without any.",
    bare=True,
)  # fmt: skip

Report = Mapping[str, Sequence["Finding"]]


def examine() -> dict[str, list[Finding]]:
    """Look at everything, section by section."""
    from easgd.cli import findings

    return {name: getattr(findings, name)() for name in SECTIONS}


def advice(report: Report) -> list[str]:
    """Return what to do, one line each."""
    return [finding.advice for section in report.values() for finding in section if finding.advice]


def as_json(report: Report) -> str:
    """Return the values by section and name, and the advice."""
    values = {name: {finding.name: finding.value for finding in section} for name, section in report.items()}
    return json.dumps({**values, "advice": advice(report)}, indent=2)


def as_text(report: Report) -> str:
    """Return a screen for people."""
    lines = []
    for name, section in report.items():
        lines.append(SECTIONS[name])
        lines += [f"  {finding.name.replace('_', ' '):<20}{finding.text}" for finding in section]
    todo = advice(report) or ["nothing: all is there"]
    return "\n".join([*lines, "What to do", *(f"  {line}" for line in todo)])


def as_bug(report: Report) -> str:
    """Return a Markdown block with room for the user's words."""
    questions = "\n\n".join(f"**{question}**\n\n…" for question in QUESTIONS)
    return f"{questions}\n\n**`easgd doctor`**\n\n```text\n{as_text(report)}\n```"


def main(argv: list[str]) -> int:
    options = COMMAND.parse(argv)
    if options.bug and options.json:
        raise SettingError("--bug and --json: a report is for people or for programs; give one of them")
    if options.history is not None:
        from easgd.cli.doctor_history import examine_history

        return examine_history(options.history, options.json)
    show = as_json if options.json else as_bug if options.bug else as_text
    print(show(examine()))
    return 0
