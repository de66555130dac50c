"""A group's access to its center: each rank exchanges what it owns and gives the others what they share with it.

All ranks of a group make the same calls in the same order, on the thread of the exchange: what is hidden behind forward
and backward on one rank is hidden on all. Two sums of a few numbers make them agree: before an exchange, that every
rank's message is finite, and on one scale; after it, who could not reach the center. No parameter is gathered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from easgd.center.client import CenterClient, JoinRequest, Move
from easgd.center.guard import Refusal
from easgd.center.layout import Layout, assembled
from easgd.center.state import accepts
from easgd.center.transports import connect, read
from easgd.errors import CenterLostError, SettingError, UnreachableError, refuse
from easgd.groups.communicator import WorkerGroup
from easgd.groups.names import shard_name
from easgd.groups.plan import Plan

Call = Callable[[CenterClient, Tensor | None, float], Any]


def connect_group(run: str, request: JoinRequest, group: WorkerGroup) -> GroupClient:
    """Find the centers of a group's worker; all its ranks call this together."""
    if request.method.fragments > 1:
        raise refuse("fragments", request.method.fragments, "a group exchanges its shards whole", "leave it out")
    if request.method.automatic:
        raise refuse("period", "auto", "the ranks of a group must exchange at the same steps", "write period=10")
    layouts = group.texts("layout", json.dumps(request.layout.as_json()))
    plan = Plan.of([Layout.from_json(json.loads(text)) for text in layouts], group.member)
    names = {m: shard_name(request.center, m) if len(plan.owners) > 1 else request.center for m in plan.owners}
    if len(names) > 1 and request.saved is not None:
        raise SettingError("saved: a sharded model begins from its own weights; load them before easgd.attach")
    client = None
    if group.member in names:
        own = replace(
            request, center=names[group.member], layout=plan.owned_layout, start=plan.take_owned(request.start)
        )
        client = connect(run, own)
    return GroupClient(run, request, group, plan, client, list(names.values()))


class GroupClient:
    """One rank's side; a `CenterClient`. `client` is the way to the center of what this rank owns, if it owns any."""

    move: Move | None = None
    pace = slowest = 0.0
    hides_rounds = False

    def __init__(
        self, run: str, request: JoinRequest, group: WorkerGroup, plan: Plan, client: CenterClient | None,
        names: list[str],
    ) -> None:  # fmt: skip
        self.run, self.group, self.plan, self.client, self.names = run, group, plan, client, names
        self.layout, self.method, self.launched = request.layout, request.method, request.launched
        self.leads = group.member == plan.owners[0]
        self.wait_seconds, self.bytes_sent = 0.0, 0
        self.counts_bytes = client is None or client.counts_bytes
        self.update_sqnorm: float | None = None
        self._living, self._version = request.launched, 0
        self._events: list[tuple[str, str]] = []

    @property
    def events(self) -> list[tuple[str, str]]:
        return self._events if self.client is None else self.client.events

    @property
    def refusal(self) -> Refusal:
        return Refusal() if self.client is None else self.client.refusal

    @property
    def living(self) -> int:
        """How many groups there are, as the first rank knew it at the last exchange."""
        return self._living

    @property
    def version(self) -> int:
        return self._version

    def updates(self, fragment: int) -> int:
        return self._version

    # membership ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from, on shared tensors the same on all ranks."""
        out = torch.empty(self.plan.size)
        if self.client is not None:
            self.plan.put_owned_(out, self.client.join(incarnation))
        self._share_(out)
        return out

    def gather(self, seconds: float) -> int:
        """Wait until the same ranks of all groups have come."""
        missing = 0 if self.client is None else self.client.gather(seconds)
        self._living = 0 if self.client is None or not self.leads else self.client.living
        total, self._living = (int(n) for n in self.group.summed([missing, self._living]))
        return total

    def begin(self, elapsed: float) -> float:
        return time.monotonic() - elapsed if self.client is None else self.client.begin(elapsed)

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        if self.client is not None and self.leads:
            self.client.leave_behind(rest, aliases)

    def leave(self) -> None:
        if self.client is not None:
            self.client.leave()

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        """Exchange what this rank owns, and share the answers."""
        if (agreed := self._agree(message, scale)) is None:
            return None
        return self._answer(lambda c, part, a: c.exchange(part, a), message, agreed)

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        """Take part in one synchronous round; a group that was refused meets the others without a change."""
        agreed = self._agree(message, scale)
        sent, a = (None, 0.0) if agreed is None else (message, agreed)
        answer = self._answer(lambda c, part, a: c.exchange_together(part, a, deadline), sent, a)
        return None if agreed is None else answer

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        """Apply what wants no answer."""
        if (agreed := self._agree(message, scale)) is None:
            return False
        refused, unreached, _ = self._call(
            lambda c, part, a: (part is not None and c.push(part, a)) or None, message, agreed
        )
        if unreached:
            raise UnreachableError(f"rank {', '.join(map(str, unreached))} of the group cannot reach the center")
        return not refused

    def _agree(self, message: Tensor | None, scale: float) -> float | None:
        """Return the scale, as the first rank knows it; None if any rank's message may not meet the center."""
        bad = message is not None and not accepts(message, scale)
        refused, agreed = self.group.summed([bad, scale if self.leads and not bad else 0.0])
        return None if refused else agreed

    def _call(self, call: Call, message: Tensor | None, scale: float) -> tuple[bool, list[int], Any]:
        """Make the call for what this rank owns.

        Returns whether the center refused any rank, the ranks that did not reach it, and the answer to this one.
        """
        answer, missed, sqnorm, version, living = None, 0.0, 0.0, 0, 0
        if self.client is not None:
            try:
                answer = call(self.client, None if message is None else self.plan.take_owned(message), scale)
            except UnreachableError as error:
                missed = 1.0
                self.events.append(("unreachable", str(error)))
            sqnorm = self.client.update_sqnorm or 0.0
            self.wait_seconds, self.client.wait_seconds = self.wait_seconds + self.client.wait_seconds, 0.0
            self.bytes_sent, self.client.bytes_sent = self.bytes_sent + self.client.bytes_sent, 0
            if self.leads:
                version, living = self.client.version, self.client.living
        refused = self.client is not None and answer is None and not missed
        missing = [missed if m == self.group.member else 0.0 for m in range(self.group.size)]
        sums = self.group.summed([sqnorm, version, living, refused, *missing])
        self.update_sqnorm = sums[0] or None
        self._version, self._living = int(sums[1]), max(1, int(sums[2]))
        return bool(sums[3]), [m for m, n in enumerate(sums[4:]) if n], answer

    def _answer(self, call: Call, message: Tensor | None, scale: float) -> Tensor | None:
        refused, unreached, part = self._call(call, message, scale)
        if refused:
            return None
        mine = {self.group.member, *(b.owner for b in self.plan.broadcasts if b.here)} & set(self.plan.owners)
        who = f"rank {', '.join(map(str, unreached))} of the group cannot reach the center"
        if unreached and not self.method.is_elastic and set(unreached) != set(self.plan.owners):
            raise CenterLostError(f"{who}, and the others can; the group starts again from the center")
        answer = torch.zeros(self.plan.size) if message is None or unreached else message
        if part is not None:
            self.plan.put_owned_(answer, part)
        self._share_(answer, unreached)
        if unreached and mine <= set(unreached):
            raise UnreachableError(who)
        return answer

    def _share_(self, vector: Tensor, without: Sequence[int] = ()) -> None:
        """Give every rank the owners' values of what it has in common with them; without those that have none."""
        for b in self.plan.broadcasts:
            if b.owner in without:
                continue
            whole = b.here[0] == (0, b.size, b.here[0][2]) if b.here else False
            buffer = vector[b.here[0][2] :][: b.size] if whole else torch.zeros(b.size)
            if not whole and b.owner == self.group.member:
                for place, size, mine in b.here:
                    buffer[place : place + size] = vector[mine : mine + size]
            self.group.broadcast_(buffer, b.owner)
            if not whole:
                for place, size, mine in b.here:
                    vector[mine : mine + size] = buffer[place : place + size]

    # the rest --------------------------------------------------------------------------------------------------

    def same_gradient(self, digest: int) -> list[int]:
        return self.client.same_gradient(digest) if self.client is not None and self.leads else []

    def begin_average(self) -> None:
        if self.client is not None:
            self.client.begin_average()

    def wait_turn(self, deadline: float) -> None:
        """Wait until it is this group's turn."""
        if self.client is not None and self.leads:
            self.client.wait_turn(deadline)
        self.group.summed([0.0])

    def pass_turn(self) -> None:
        """Let the next group act, when every rank of this one has."""
        self.group.summed([0.0])
        if self.client is not None and self.leads:
            self.client.pass_turn()

    def snapshot(self) -> dict[str, Tensor]:
        """Return x̃ for a group that starts anew from it; all its ranks call it together."""
        out = torch.empty(self.plan.size)
        if self.client is not None:
            self.plan.put_owned_(out, self.client.snapshot()["x"])
        self._share_(out)
        return {"x": out}

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is evaluated, sharded tensors whole. Any rank may ask alone: it reads the centers itself."""
        if self.client is not None and len(self.names) == 1:
            return self.client.state_dict()
        return assembled([read(self.run, name) for name in self.names])
