"""Runs that differ only in what is measured, computed together: one path, one gradient per step.

ADOWNPOUR and MVADOWNPOUR take DOWNPOUR's steps and measure an average of its center; ASGD and MVASGD take SGD's. On the
virtual clock such runs step side by side in one process. The first computes the gradients; the others reuse them, after
a check that their own x has the same bits. Each writes the same folder as if it had run alone.

    python -m easgd.training.shared_gradients OUT SETTINGS [OUT SETTINGS …]

begins or resumes each run in its folder, and prints JSON lines that name their run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from easgd.engines.simulate.gradients import Gradients
from easgd.signals import StopRequest, handle_signals
from easgd.training.config import Config
from easgd.training.folder import RunFolder, alone
from easgd.training.simulation_runner import SimulationRunner
from easgd.training.train import save_model
from easgd.training.view import Json, shielded
from easgd.worker.state import WorkerState

Tape = dict[tuple[int, int], tuple[Tensor, Tensor, float | None]]
"""(worker, step) -> x, the gradient there, its loss"""


class Recording(Gradients):
    """Gradients of the first run, which are kept for the others."""

    def __init__(self, gradients: Gradients, tape: Tape) -> None:
        super().__init__(gradients.function, gradients.parallel)
        self._tape = tape

    def take(self, worker: WorkerState) -> Tensor:
        g = super().take(worker)
        self._tape[worker.rank, worker.clock] = worker.replica.read().clone(), g.clone(), self.loss(worker)
        return g


class Replaying(Gradients):
    """Gradients that the first run of the same path computed."""

    def __init__(self, gradients: Gradients, tape: Tape) -> None:
        super().__init__(gradients.function)
        self._tape, self._losses = tape, dict[int, float | None]()

    def take(self, worker: WorkerState) -> Tensor:
        x, g, self._losses[worker.rank] = self._tape[worker.rank, worker.clock]
        assert torch.equal(x, worker.replica.read()), f"worker {worker.rank}, step {worker.clock}: the paths differ"
        return g.clone()

    def loss(self, worker: WorkerState) -> float | None:
        return self._losses.get(worker.rank)


class SharedGradientGroup:
    """Runs that step together and are saved together: after a kill all of them go on from the same tick."""

    def __init__(self, members: Sequence[SimulationRunner]) -> None:
        self.members, self.stop_requested = members, False
        self._tape: Tape = {}
        first, *others = members
        first.sim.gradients = Recording(first.sim.gradients, self._tape)
        for other in others:
            other.sim.gradients = Replaying(other.sim.gradients, self._tape)

    def run(self) -> None:
        saved = time.monotonic()
        while any(member.ended is None for member in self.members):
            for member in self.members:
                member.stop_requested = self.stop_requested
            for member in self.members:
                if member.ended is None:
                    member.advance()
            self._tape.clear()
            if time.monotonic() - saved >= self.members[0].config.checkpoint_every:
                for member in self.members:
                    member.save()
                saved = time.monotonic()


def carry_out(runs: Sequence[tuple[Path, Path]]) -> int:
    """Begin or resume runs, given as folder and file of settings; return the exit code."""
    torch.set_num_threads(1)
    request = StopRequest()
    with ExitStack() as held:
        held.enter_context(handle_signals(request))
        members = []
        for out, settings in runs:
            folder, resumed = RunFolder(out), (out / "config.json").exists()
            config = folder.config() if resumed else Config.load(settings).resolved()
            if not resumed:
                folder.create(config)
            held.enter_context(alone(out))
            member = SimulationRunner(config, folder, shielded(Json(out.name)))
            held.callback(member.close)
            if resumed:
                member.load()
            members.append(member)
        for group in in_step(members):
            request.tell(group)
            _carry_out(group)
    states = {member.ended[0] for member in members if member.ended is not None}
    return 130 if "interrupted" in states else 1 if "failed" in states else 0


def in_step(members: Sequence[SimulationRunner]) -> list[SharedGradientGroup]:
    """Group the runs that are at the same tick; a kill between two checkpoints may have separated them."""
    groups: dict[int, list[SimulationRunner]] = {}
    for member in members:
        groups.setdefault(member.sim.ticks, []).append(member)
    return [SharedGradientGroup(group) for group in groups.values()]


def _carry_out(group: SharedGradientGroup) -> None:
    try:
        group.run()
    except BaseException as error:
        for member in group.members:
            member.folder.set_status("failed", f"{type(error).__name__}: {error}", seconds=member.seconds)
        raise
    for member in group.members:
        assert member.ended is not None
        member.ended = save_model(member.folder, member.ended, member.center())
        member.folder.set_status(*member.ended, seconds=member.seconds)
        member.view.end(*member.ended)


if __name__ == "__main__":
    words = [Path(word) for word in sys.argv[1:]]
    sys.exit(carry_out(list(zip(words[::2], words[1::2], strict=True))))
