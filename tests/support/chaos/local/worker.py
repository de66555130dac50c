"""A simulated worker process of the local engine: the real client and exchange, watched from outside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chaos.training import Training
from easgd.engines.local.client import SharedMemoryClient, connect

if TYPE_CHECKING:
    from chaos.local.simulation import LocalSimulation


class LocalWorker:
    """One incarnation of a rank, in a process of its own."""

    def __init__(self, simulation: LocalSimulation, rank: int, incarnation: int) -> None:
        self.simulation, self.rank, self.incarnation = simulation, rank, incarnation
        self.scheduler, self.scenario, self.witness = simulation.scheduler, simulation.scenario, simulation.witness
        self.name = f"worker-{rank}-{incarnation}"
        self.process = self.scheduler.process(self.name)
        self.state, self.killed, self.reported = "starting", False, False
        self.received = torch.zeros(self.scenario.size, dtype=torch.float64)
        """Σd that it has subtracted, where the method answers with d"""
        self._sequence = -1
        self.scheduler.later(self.scheduler.random.uniform(0.0, 0.3), self._start)

    def _start(self) -> None:
        if self.process.alive:
            self.scheduler.spawn(self.process, self._main, "main")

    @property
    def living(self) -> bool:
        return self.process.alive and self.state != "ended"

    def kill(self) -> None:
        """SIGKILL."""
        if self.living:
            self.killed = True
            self.scheduler.note(f"{self.name} is killed ({self.state})")
            self.simulation.kill(self.process)

    # in its own process ----------------------------------------------------------------------------------------

    def _main(self) -> None:
        self._train(self.simulation.run_folder)
        self.state = "ended"
        self.simulation.kernel.drop(self.process)

    def _train(self, run: Path) -> None:
        scenario = self.scenario
        history = self.simulation.history if scenario.history else None
        training = Training(scenario, self.rank, self.incarnation)
        client = connect(str(run), training.request(history=history))
        self._observe(client)
        training.join(client)
        self.state = "joined"
        training.gather(client)
        training.tie(client, scenario.overlap)
        training.steps(scenario.steps)
        if scenario.schedule == "async":
            self.state = "quiet"
            self.simulation.quiet.wait()
            self.state = "joined"
            training.steps(2)
        training.exchange.close()
        client.leave_behind({}, {})
        self.state = "leaving"
        client.leave()

    # what it asks and gets -------------------------------------------------------------------------------------

    def _observe(self, client: SharedMemoryClient) -> None:
        """Look at every exchange, whichever way it goes."""
        ask, meet, move = client.exchange, client.exchange_together, client.move
        elastic = self.scenario.method.is_elastic

        def exchange(message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
            self._begin(client, fragment if message is not None else None, scale)
            answer = ask(message, scale, fragment)
            return self._end(client, fragment, answer, message is not None and answer is not None, elastic)

        def together(message: Tensor | None, scale: float, deadline: float, fragment: int = 0) -> Tensor | None:
            self._begin(client, fragment if message is not None else None, scale, together=True)
            answer = meet(message, scale, deadline, fragment)
            return self._end(client, fragment, answer, message is not None and answer is not None, elastic)

        def in_place(parts: list[tuple[Tensor, float]], scale: float, fragment: int) -> bool:
            assert move is not None
            self._begin(client, fragment, scale)
            before = [part.clone() for part, _ in parts]
            taken = move(parts, scale, fragment)
            d = torch.cat([(x - part) / gain for x, (part, gain) in zip(before, parts, strict=True)])
            self._end(client, fragment, d, taken, elastic)
            return taken

        vars(client).update(exchange=exchange, exchange_together=together)
        client.move = None if move is None else in_place

    def _begin(self, client: Any, fragment: int | None, scale: float, together: bool = False) -> None:
        if not 0.0 < scale <= 1.0:
            self.witness.wrong(f"{self.name}: the moving rate is {scale}")
        self._sequence += 1
        stripes = range(0) if fragment is None else client.segment.stripes[fragment]
        self.witness.begin((self.rank, self.incarnation), self._sequence, stripes, together)

    def _end(self, client: Any, fragment: int, answer: Tensor | None, taken: bool, elastic: bool) -> Tensor | None:
        self.witness.end(taken)
        if taken and elastic and answer is not None:
            a, b = client.segment.fragments[fragment]
            self.received[a:b] += answer.detach()
        return answer
