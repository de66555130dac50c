"""A worker's access to the center of its machine, which is tied to the run's (`easgd.center.levels` has the rule).

The workers of a machine exchange on shared memory, as those of a run on one machine do. One of them, whoever takes the
lock `UPLINK` first, also carries the machine's exchanges with the run's center, on a thread of its own (`Uplink`). The
kernel drops that lock when its holder is killed, and another worker takes it at its next exchange.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from easgd.center.client import JoinRequest, Move
from easgd.center.guard import Refusal
from easgd.engines.local.client import SharedMemoryClient
from easgd.engines.local.control import LOCKS, OPENING, Control
from easgd.engines.local.reader import folder_of
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.uplink import Uplink
from easgd.errors import SettingError
from easgd.launch.run_directory import MachineDirectory
from easgd.locks import RecordLocks

PAIR = "machines with a center each exchange as they come"


class MachineClient:
    """A `CenterClient` of two: `shared` is the machine's center, `upper` the run's."""

    hides_rounds = False
    counts_bytes = True

    def __init__(self, upper: RayCenterClient, request: JoinRequest, directory: MachineDirectory) -> None:
        assert request.machine_period is not None
        self.upper, self.directory = upper, directory
        folder = folder_of(directory.path, request.center)
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = RecordLocks.of(folder / LOCKS)
        # The time average and the history are the run's: a machine's center keeps none.
        plain = replace(request.method, average=None)
        own = replace(request, method=plain, compression=None, saved=None, history=None)
        with self._locks.threads, self._locks.hold(OPENING):
            if not Control.exists(folder):  # the first worker of this machine brings it the run's center
                own = replace(own, start=upper.snapshot()["x"])
            self.shared = SharedMemoryClient(folder, own)
        self.uplink = Uplink(self.shared, upper, request.method, request.machine_period)
        self.move: Move | None = None if self.shared.move is None else self._move

    # what a worker reads ---------------------------------------------------------------------------------------

    @property
    def wait_seconds(self) -> float:
        return self.shared.wait_seconds

    @wait_seconds.setter
    def wait_seconds(self, value: float) -> None:
        self.shared.wait_seconds = value

    @property
    def update_sqnorm(self) -> float | None:
        return self.shared.update_sqnorm

    @property
    def bytes_sent(self) -> int:
        """What this worker has carried over the network for its machine."""
        return self.uplink.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, value: int) -> None:
        self.uplink.bytes_sent = value

    @property
    def pace(self) -> float:
        return self.shared.pace

    @pace.setter
    def pace(self, value: float) -> None:
        self.shared.pace = value

    @property
    def slowest(self) -> float:
        return self.shared.slowest

    @property
    def refusal(self) -> Refusal:
        return self.shared.refusal

    @property
    def events(self) -> list[tuple[str, str]]:
        return self.upper.events

    @property
    def living(self) -> int:
        """How many workers this machine has: α₁ is theirs."""
        return self.shared.living

    @property
    def version(self) -> int:
        return self.shared.version

    def updates(self, fragment: int) -> int:
        return self.shared.updates(fragment)

    # membership ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int) -> Tensor:
        """Enter the machine and the run; return the machine's center to start from."""
        x = self.shared.join(incarnation)
        self.upper.enter()
        return x

    def gather(self, seconds: float) -> int:
        return self.upper.gather(seconds)

    def begin(self, elapsed: float) -> float:
        return self.upper.begin(elapsed)

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        self.upper.leave_behind(rest, aliases)

    def leave(self) -> None:
        """Leave the machine; its last worker brings the run's center what the machine has learned since."""
        with self._locks.threads, self._locks.hold(OPENING):
            self.shared.leave()
            last = not self.shared.control.joined()
        self.uplink.close(last)
        self.upper.leave()
        self.directory.close()

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        answer = self.shared.exchange(message, scale, fragment)
        self.uplink.exchanged()
        return answer

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        return self.exchange(message, scale, fragment) is not None

    def _move(self, parts: list[tuple[Tensor, float]], scale: float, fragment: int) -> bool:
        assert self.shared.move is not None
        moved = self.shared.move(parts, scale, fragment)
        self.uplink.exchanged()
        return moved

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        raise SettingError(f"schedule = sync: {PAIR}; leave out --machine-period or the schedule")

    def wait_turn(self, deadline: float) -> None:
        raise SettingError(f"schedule = round-robin: {PAIR}; leave out --machine-period or the schedule")

    def pass_turn(self) -> None:
        raise AssertionError("no turn was waited for")

    # the run's own ---------------------------------------------------------------------------------------------

    def same_gradient(self, digest: int) -> list[int]:
        return self.upper.same_gradient(digest)

    def begin_average(self) -> None:
        with self.uplink.wire:
            self.upper.begin_average()

    def snapshot(self) -> dict[str, Tensor]:
        """Return the machine's center, for a worker that starts again from it."""
        return self.shared.snapshot()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the run's center: what is evaluated and kept."""
        return self.upper.state_dict()
