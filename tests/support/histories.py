"""What fault tests ask of a run that was started with its history: every exchange is accounted for."""

from __future__ import annotations

from pathlib import Path

from easgd.center.check_history import check_folder
from easgd.center.replay import Report
from easgd.cli.doctor_history import centers


def follows(out: Path, ended: bool = True) -> list[Report]:
    """Replay all histories in a run's folder; each must explain itself, up to its last value if the run has ended."""
    reports = [check_folder(folder) for folder in centers(out)]
    assert reports, f"no history in {out}"
    for report in reports:
        assert report.differences == [], str(report)
        assert report.slots  # a worker may be killed before its first exchange
        assert not ended or not [note for note in report.notes if "is not known" in note]
    return reports
