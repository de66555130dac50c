"""Checks of what the user asked a launch for; each refusal is one line that says what to write instead."""

from __future__ import annotations

from easgd.errors import refuse, unknown
from easgd.worker.context import SCHEDULES


def check_count(what: str, value: object, least: int, example: str) -> None:
    """Refuse anything but a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(what, value, f"it is a whole number ≥ {least}", f"write {example}")


def check_gpus(value: float | None) -> None:
    """Refuse what is no number of accelerators per worker: below one it is a share of a device."""
    if value is not None and not (value >= 0 and (value < 1 or value == int(value))):
        raise refuse("gpus", value, "it is a whole number, or a fraction of one device", "write gpus=1")


def check_schedule(schedule: str | None) -> None:
    if schedule is not None and schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
