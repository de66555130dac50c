"""A center that every rank of a torch process group has whole: one all-reduce per exchange, and no server.

`torchrun --nproc-per-node=4 train.py` starts it: all ranks propose a change of the same x̃, an all-reduce sums them, and
each rank updates its own copy with the sum. An all-reduce gives every rank the same bits, so the copies stay equal. It
runs on a process group of its own, beside the script's collectives, and on the exchange's thread where that hides it.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from easgd.center.client import JoinRequest, Move
from easgd.center.guard import Refusal
from easgd.center.layout import Layout, check_saved, refuse_misfit, saved_clocks
from easgd.center.whole import Center
from easgd.engines.collective.texts import from_rank_0
from easgd.errors import RankLostError


def connect(address: str, request: JoinRequest) -> CollectiveClient:
    """Make the process group's center; all its ranks call this together."""
    initialised = not dist.is_initialized()
    if initialised:  # torchrun's variables are there, and the script has not called it
        dist.init_process_group(timeout=timedelta(seconds=max(1.0, request.deadline)))
    return CollectiveClient(request, initialised)


class CollectiveClient:
    """One rank's copy of the center; a `CenterClient`. Every rank must take as many steps as the others."""

    move: Move | None = None
    hides_rounds = True
    counts_bytes = True

    def __init__(self, request: JoinRequest, initialised: bool = False) -> None:
        self.method, self.layout, self.deadline = request.method, request.layout, request.deadline
        self._initialised = initialised
        ranks = dist.get_process_group_ranks(request.process_group or dist.group.WORLD)
        self.rank, self.launched = request.rank, len(ranks)
        self._ranks = ranks
        # Its own communicator, so that the exchange's thread and the script's collectives cannot meet out of order.
        self._group: Any = dist.new_group(
            ranks, timeout=timedelta(seconds=max(1.0, self.deadline)), use_local_synchronization=True,
            backend=dist.get_backend(request.process_group), group_desc="easgd",
        )  # fmt: skip
        self._device = _device_of(self._group)
        self._board = _store_of(self._group)
        self._lock = threading.Lock()
        self._round = 0
        self.events: list[tuple[str, str]] = []
        self.wait_seconds, self.bytes_sent = 0.0, 0
        self.update_sqnorm: float | None = None
        self.refusal = Refusal()
        self.pace = self.slowest = 0.0
        self._open(request)

    def _open(self, request: JoinRequest) -> None:
        """Take rank 0's start value, or its saved center; refuse a rank with another model or method."""
        slots = request.method.center_slots(request.start.to(torch.float32))
        clocks = [[0, 0]] * self.method.fragments
        if request.saved is not None:
            check_saved(request.saved, slots)
            slots, clocks = request.saved["slots"], saved_clocks(request.saved, self.method.fragments)
        header = {"method": repr(self.method), "layout": self.layout.as_json(), "began": time.time(), "clocks": clocks}
        theirs = json.loads(from_rank_0(json.dumps(header), self._group, self._device))
        problems = self.layout.differences(Layout.from_json(theirs["layout"]))
        if theirs["method"] != header["method"]:
            problems.append(f"the method is {header['method']} here, {theirs['method']} on rank 0")
        self._refuse(problems)
        for name, slot in slots.items():
            slots[name] = self._broadcast(slot.to("cpu", torch.float32).contiguous())
        self._began: float = theirs["began"]
        self.center = Center(self.method, slots)
        for part, clock in zip(self.center.parts, theirs["clocks"], strict=True):
            part.set_clock(clock)
        self._buffer = torch.zeros(self.layout.size + 1, dtype=torch.float32, device=self._device)

    def _refuse(self, problems: list[str]) -> None:
        """Refuse a misfit on all ranks: one that alone gave up would leave the others waiting for it."""
        misfits = torch.tensor([float(bool(problems))], device=self._device)
        dist.all_reduce(misfits, group=self._group)
        if misfits.item() and not problems:
            problems = [f"{int(misfits.item())} other ranks have another model or method than rank 0"]
        refuse_misfit(problems)

    def _broadcast(self, vector: Tensor) -> Tensor:
        there = vector.to(self._device)
        dist.broadcast(there, group_src=0, group=self._group)
        return there.to("cpu")

    # membership ------------------------------------------------------------------------------------------------

    @property
    def living(self) -> int:
        """All ranks: without one of them there is no all-reduce."""
        return self.launched

    @property
    def version(self) -> int:
        return self.center.version

    def updates(self, fragment: int) -> int:
        """How often a fragment of the center was updated."""
        return self.center.parts[fragment].version

    def join(self, incarnation: int) -> Tensor:
        """Start from rank 0's value."""
        return self.center.x.clone()

    def gather(self, seconds: float) -> int:
        """All have come: the center was made together."""
        return 0

    def begin(self, elapsed: float) -> float:
        """Return when rank 0 made the center; machines share the time of day and no other clock."""
        return time.monotonic() - (time.time() - self._began) - elapsed

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Keep nothing: every rank has its model and the center."""

    def leave(self) -> None:
        """Say that this rank has ended, for the message of one that still waits for it."""
        self._write("left")
        if self._initialised and dist.is_initialized():
            dist.destroy_process_group()

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        """Equations 3 and 4: every d from the same x̃; each rank updates its x̃ with their sum."""
        vector, part = None if message is None else message.to("cpu", torch.float32), self.center.parts[fragment]
        d = part.propose(vector, scale)
        total, count = self._sum(d, part.x.numel())
        with self._lock:
            if count:  # else every message was a pull or was refused
                part.absorb_round([total])
        self.refusal, self.update_sqnorm = part.refusal, None
        if self.method.automatic:
            self._agree_on_pace()
        return None if message is not None and d is None else part.round_answer(d)

    def _agree_on_pace(self) -> None:
        """Take the longest period that any rank brought."""
        longest = torch.tensor([self.pace], device=self._device)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._group)
        self.slowest = float(longest.item())

    def _sum(self, d: Tensor | None, size: int) -> tuple[Tensor, int]:
        """Sum all ranks' changes of this size; the last element counts who brought one."""
        buffer = self._buffer[: size + 1]
        buffer[:size] = 0.0 if d is None else d.to(self._device)
        buffer[size] = float(d is not None)
        self._round += 1
        self._write(str(self._round))
        start = time.perf_counter()
        try:
            dist.all_reduce(buffer, group=self._group)
            result = buffer.to("cpu")  # also waits for an accelerator's stream
        except RuntimeError as error:
            raise self._lost(error) from error
        self.wait_seconds += time.perf_counter() - start
        self.bytes_sent += int(8 * (size + 1) * (self.launched - 1) / self.launched)
        return result[:size], int(result[size])

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        raise AssertionError("only synchronous methods come here: `worker.process_group` refuses the others")

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        raise AssertionError("only synchronous methods come here: `worker.process_group` refuses the others")

    # a lost rank -----------------------------------------------------------------------------------------------

    def _write(self, word: str, what: str = "round") -> None:
        """Write on the job's store how far this rank is; a store that is gone with rank 0's process costs a name."""
        try:
            if self._board is not None:
                self._board.set(f"easgd-{what}-{self._ranks[self.rank]}", word)
        except RuntimeError:
            self._board = None

    def _lost(self, error: RuntimeError) -> RankLostError:
        words = {rank: self._read(rank) for rank in self._ranks}
        left = [rank for rank, word in words.items() if word == "left"]
        behind = [r for r, word in words.items() if word is not None and word.isdigit() and int(word) < self._round]
        who = f"rank {', '.join(map(str, left or behind))}" if left or behind else "another rank"
        what = "has ended before it" if left else "is lost, or too slow"
        reason = str(error).splitlines()[0][:160]
        return RankLostError(
            f"worker {self.rank}: {who} {what}: round {self._round} has no end within {self.deadline:g} s ({reason}); "
            "all ranks must take as many steps; give attach a longer deadline if they do"
        )

    def _read(self, rank: int, what: str = "round") -> str | None:
        key = f"easgd-{what}-{rank}"
        try:
            if self._board is None or not self._board.check([key]):
                return None
            return bytes(self._board.get(key)).decode()
        except RuntimeError:
            return None

    # the rest --------------------------------------------------------------------------------------------------

    def same_gradient(self, digest: int) -> list[int]:
        """Report a digest of this rank's first gradient; return the ranks that reported the same before."""
        self._write(str(digest), "gradient")
        others = (rank for rank in range(self.launched) if rank != self.rank)
        return [rank for rank in others if self._read(self._ranks[rank], "gradient") == str(digest)]

    def begin_average(self) -> None:
        """Begin the time average anew; every rank calls it at the same step."""
        with self._lock:
            self.center.begin_average()

    def wait_turn(self, deadline: float) -> None:
        raise AssertionError("turns need a center of a launched run")

    def pass_turn(self) -> None:
        raise AssertionError("turns need a center of a launched run")

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of this rank's vectors, which are every rank's."""
        with self._lock:
            return self.center.snapshot()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is evaluated, as named tensors."""
        with self._lock:
            return self.layout.split(self.center.measured)


def _device_of(group: Any) -> torch.device:
    """Where the vectors of a collective must be: gloo takes the CPU's, NCCL those of the current accelerator."""
    kinds = {device.type for device in group._device_types}
    return torch.device("cpu") if "cpu" in kinds else torch.accelerator.current_accelerator() or torch.device("cpu")


def _store_of(group: Any) -> Any:
    """The key-value store behind a process group. Torch has no public name for it; without it no rank is named."""
    from torch.distributed import distributed_c10d as c10d

    find = getattr(c10d, "_get_process_group_store", None)
    return None if find is None else find(group)
