"""Checks of what the user asked a launch for; each refusal is one line that says what to write instead."""

from __future__ import annotations

from easgd.engines.local.control import RANKS
from easgd.errors import refuse, unknown
from easgd.worker.context import SCHEDULES


def check_count(what: str, value: object, least: int, example: str) -> None:
    """Refuse anything but a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(what, value, f"it is a whole number ≥ {least}", f"write {example}")


def check_workers(what: str, value: object, example: str) -> None:
    """Refuse what is no number of workers of one machine."""
    check_count(what, value, 1, example)
    if isinstance(value, int) and value > RANKS:
        raise refuse(what, value, f"one machine has at most {RANKS}", "start fewer")


def check_schedule(schedule: str | None) -> None:
    """Refuse an unknown schedule."""
    if schedule is not None and schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
