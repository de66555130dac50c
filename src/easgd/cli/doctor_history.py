"""`easgd doctor --history RUN`: replay what a run has written down of its exchanges, and say what does not follow."""

from __future__ import annotations

import json
from pathlib import Path

from easgd.center.check_history import check_folder
from easgd.center.history import SUFFIX
from easgd.center.replay import Report
from easgd.errors import refuse


def centers(run: Path) -> list[Path]:
    """The folders of a run's histories: one for each session of the run and each of its centers."""
    return sorted({path.parent for path in (run / "history").glob(f"*/*/*{SUFFIX}")})


def examine_history(run: Path, as_json: bool) -> int:
    """Replay all histories of a run and print what was found; return 0 if all follow, else 1."""
    if not run.is_dir():
        raise refuse("history", run, "there is no such folder", "give the folder of a run, as in runs/mine")
    folders = centers(run)
    if not folders:
        raise refuse("history", run, "nothing was written down in it", "start the run with --history")
    found: dict[str, Report | str] = {}
    for folder in folders:
        name = folder.relative_to(run / "history").as_posix()
        try:
            found[name] = check_folder(folder)
        except (ValueError, OSError) as error:  # damaged, or of a method that is not here
            found[name] = str(error)
    sound = all(isinstance(report, Report) and not report.differences for report in found.values())
    print(json.dumps({name: _data(report) for name, report in found.items()}, indent=2) if as_json else _text(found))
    return 0 if sound else 1


def _data(report: Report | str) -> dict[str, object]:
    if isinstance(report, str):
        return {"differences": [report]}
    differences = [str(difference) for difference in report.differences]
    return {"exchanges": report.exchanges, "rolls": report.rolls, "differences": differences, "notes": report.notes}


def _text(found: dict[str, Report | str]) -> str:
    lines = []
    for name, report in found.items():
        lines.append(f"{name}: {report}")
        if isinstance(report, Report):
            lines += [f"  {note}" for note in report.notes]
    return "\n".join(lines)
