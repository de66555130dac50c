"""Checks the history of a center: replays every stretch, then what concerns several of them.

- An exchange (worker, incarnation, sequence) is applied at most once, and none of an incarnation that has ended.
- Versions follow one another, and the numbers of rolls too; the center counts as many workers as are on the roll.
- α is in (0, 1] for the elastic methods, and a worker takes the very d that the center has added: Σxⁱ + x̃ is
  conserved at every exchange.
- The replay reaches the same center, bit for bit.

It needs no engine: an entry of shared memory, of a shard or of the virtual clock reads the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from easgd.center.history import Entry, Frame, read_folder
from easgd.center.replay import Changes, Difference, Report, StretchReplay, key_of


def check(history: Iterable[Frame]) -> Report:
    """Replay a center's history, given as the frames of all its files."""
    report, stretches = Report(), defaultdict[tuple[int, int], list[Frame]](list)
    rolls, answers, last = defaultdict[str, list[Frame]](list), list[Frame](), dict[tuple[int, int], int]()
    for frame in history:
        e = frame.entry
        if e.kind == "roll":
            rolls[frame.source].append(frame)
        elif e.kind == "answer":
            answers.append(frame)
        else:
            stretches[e.start, e.stop].append(frame)
        last[e.rank, e.incarnation] = max(e.order, last.get((e.rank, e.incarnation), 0))
    changes = Changes()
    for stretch, found in sorted(stretches.items()):
        found.sort(key=lambda frame: (frame.entry.epoch, frame.entry.order))
        StretchReplay(stretch, report, last, changes).run(found)
    _tiled(sorted(stretches), report)
    for source, found in rolls.items():
        _rolls(source, found, report)
    _living(stretches.values(), rolls, report)
    _conserved(answers, changes, report)
    return report


def check_folder(folder: Path) -> Report:
    """Replay the history of a center that is in a folder; ValueError if it is damaged."""
    return check(read_folder(folder))


def _tiled(stretches: list[tuple[int, int]], report: Report) -> None:
    """The stretches must cover the vector, each element once."""
    at = 0
    for start, stop in stretches:
        if start != at:
            entry = Entry("open", start=start, stop=stop)
            report.differences.append(Difference("the history", entry, f"nothing is known of elements {at} to {start}"))
        at = stop


def _rolls(source: str, found: list[Frame], report: Report) -> None:
    """Their numbers grow, and the center counts those who are on them."""
    serial = -1
    for frame in found:
        e = frame.entry
        report.rolls += 1
        if e.serial <= serial:
            report.differences.append(Difference(source, e, f"roll {e.serial} came after roll {serial}"))
        if e.living != max(1, len(e.members)):
            what = f"roll {e.serial} has the members {e.members}, the center counts {e.living}"
            report.differences.append(Difference(source, e, what))
        serial = e.serial


def _living(stretches: Iterable[list[Frame]], rolls: dict[str, list[Frame]], report: Report) -> None:
    """Where the center says how many it counts at an exchange, that is the roll of that moment; no dead one is served.

    Only entries of one file can be compared: those of a shard, or of the simulator.
    """
    for frame in (frame for found in stretches for frame in found if frame.source in rolls):
        e = frame.entry
        if e.kind not in ("apply", "round", "add") or not e.living:
            continue
        roll = next((r.entry for r in reversed(rolls[frame.source]) if r.entry.order < e.order), None)
        if roll is not None and roll.living != e.living:
            what = f"the center counts {e.living}, roll {roll.serial} has {roll.living}"
            report.differences.append(Difference(frame.source, e, what))
        # A round may still hold what a worker brought to it before it died.
        if e.kind == "apply" and roll is not None and roll.dead.get(e.rank, -1) >= e.incarnation:
            what = f"roll {roll.serial} says that this incarnation has ended"
            report.differences.append(Difference(frame.source, e, what))


def _conserved(answers: list[Frame], changes: Changes, report: Report) -> None:
    """What a worker takes is what the center has added: at each exchange Σxⁱ + x̃ stays what it is."""
    for frame in answers:
        e = frame.entry
        added = changes.get(key_of(e))
        if added is not None and sum(added.values()) % 2**64 != e.digest:
            what = "the worker took another change than the center has added: Σxⁱ + x̃ is not conserved"
            report.differences.append(Difference(frame.source, e, what))
