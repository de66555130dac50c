"""What must hold in the quiet moments and at the end of a run on one machine; `witness` checks what always must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from chaos.local.memory import SharedState
from easgd.center.check_history import check_folder
from easgd.engines.local import recording
from easgd.engines.local.control import JOINED, LIVING, STATES

if TYPE_CHECKING:
    from chaos.local.simulation import LocalSimulation

RANKS = 16


def membership(simulation: LocalSimulation) -> list[str]:
    """The control words name the workers that are in the run, and count them."""
    if (segment := simulation.segment()) is None:
        return []
    if simulation.launchers[0].ended and simulation.orphans():
        return []  # they died with their launcher when the run was over: nobody is left to mark them dead
    words = segment.control.words.words  # type: ignore[attr-defined] (without a point in between)
    there = sorted(w.rank for w in simulation.workers if w.living and w.state in ("joined", "quiet"))
    joined = [rank for rank in range(RANKS) if words[STATES + rank] == JOINED]
    wrong = []
    if joined != there:
        wrong.append(f"the control words name the workers {joined}; in the run are {there}")
    if words[LIVING] != len(there):
        wrong.append(f"the control words count {words[LIVING]} workers; in the run are {there}")
    return wrong


def accounts(simulation: LocalSimulation) -> list[str]:
    """What the center took is what the workers gave: Σd of each is the same on both sides, and x̃ has moved by Σd."""
    if (segment := simulation.segment()) is None or simulation.first is None:
        return []
    witness, wrong = simulation.witness, []
    none = torch.zeros(simulation.scenario.size, dtype=torch.float64)
    moved = segment.slots["x"].double() - simulation.first.double()
    if _apart(moved, sum(witness.added.values(), none)) > 1e-3:
        wrong.append("the center has moved by something else than its exchanges")
    if simulation.scenario.method.is_elastic:
        its = witness.summed if simulation.scenario.schedule == "sync" else witness.added
        for worker in simulation.workers:
            given = its.get((worker.rank, worker.incarnation), none)
            if not worker.killed and (apart := _apart(worker.received, given)) > 1e-4:
                wrong.append(f"what {worker.name} subtracted is {apart:.3g} from what the center added")
    if witness.sums_are_added and witness.summed:
        for state in segment.states(simulation.scenario.method):
            assert isinstance(state, SharedState)
            if state.stripe in witness.absorbing:  # the last of all workers died in it
                witness.died_with(state, witness.absorbing[state.stripe])
            if (apart := float(witness.outstanding(state).abs().max())) > 1e-3:
                wrong.append(f"stripe {state.stripe}: rounds moved it by {apart:.3g} less than was brought to them")
    return wrong


def history(simulation: LocalSimulation) -> list[str]:
    """The history of the center, replayed, reaches the same bits."""
    if not simulation.scenario.history or simulation.segment() is None:
        return []
    recording.end(simulation.run_folder)
    report = check_folder(simulation.history / "center")
    return [f"history: {report}"] if report.differences else []


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())
