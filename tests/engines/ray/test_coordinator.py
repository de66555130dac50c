"""Announcements of members and restarts of the coordinator, with shards and a store that are plain objects."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from easgd.engines.ray import coordinator as module
from easgd.engines.ray.coordinator import Coordinator
from easgd.engines.ray.remote_shard import RemoteShard
from easgd.engines.ray.shard_actor import ShardActor

PLAN = {"run": "r", "secret": b""}
HEADER = {"size": 200_000, "layout": [], "method": "m", "compression": "none"}


class Shard:
    """What `Shard.enroll` does: the highest serial number wins. `before` runs ahead of each call and may raise."""

    def __init__(self, before=None):
        self.serial, self.members, self.calls, self.before = 0, None, [], before
        self.enroll = SimpleNamespace(remote=self._enroll)

    async def _enroll(self, center, serial, members, dead):
        self.calls.append(serial)
        if self.before is not None and (answer := await self.before(serial)) is not None:
            return answer
        if serial > self.serial:
            self.serial, self.members, self.dead = serial, members, dead
        return True


class Store(dict):
    def put(self, key, value):
        self[key] = pickle.dumps(value)

    def get(self, key):
        return pickle.loads(self[key]) if key in self else None


async def opened(shards, store=None):
    coordinator = Coordinator(Store() if store is None else store, shards.__getitem__)
    await coordinator.begin(PLAN, shards)
    for _ in range(3):
        await coordinator.assign_rank(None)
    await coordinator.open("c", 0, 0, HEADER)
    await coordinator.opened("c", b"the method")
    return coordinator


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)


def test_every_shard_knows_a_member_before_it_is_acknowledged():
    async def main():
        shards = [Shard(), Shard()]
        coordinator = await opened(shards)
        assert await coordinator.join("c", 0, 0) == 1
        assert await coordinator.join("c", 1, 0) == 2
        assert [shard.members for shard in shards] == [[0, 1], [0, 1]]
        await coordinator.leave("c", 0, 0)
        assert [shard.members for shard in shards] == [[1], [1]]
        await coordinator.mark_dead(1, 0)
        assert [(shard.members, shard.dead) for shard in shards] == [([], {1: 0})] * 2
        assert await coordinator.join("c", 1, 0) == 0, "the dead do not join"

    asyncio.run(main())


def test_announcements_that_arrive_in_reverse_order_leave_the_newest():
    async def main():
        first, second = asyncio.Event(), asyncio.Event()

        async def hold_the_first(serial):
            if serial == 1:
                first.set()
                await second.wait()

        shard = Shard(hold_the_first)
        coordinator = await opened([shard])
        held = asyncio.create_task(coordinator.join("c", 0, 0))
        await first.wait()
        await coordinator.join("c", 1, 0)
        assert (shard.serial, shard.members) == (2, [0, 1])
        second.set()
        await held
        assert shard.calls == [1, 2]
        assert (shard.serial, shard.members) == (2, [0, 1])

    asyncio.run(main())


@pytest.mark.parametrize("failure", [ConnectionError("restarting"), False])
def test_a_shard_that_fails_first_is_told_again(failure):
    async def main():
        left = [failure] * 3

        async def fail(serial):
            if left:
                if isinstance(answer := left.pop(), Exception):
                    raise answer
                return answer
            return None

        shard = Shard(fail)
        coordinator = await opened([shard])
        assert await coordinator.join("c", 0, 0) == 1
        assert shard.calls == [1, 1, 1, 1], "the same announcement, repeated"
        assert shard.members == [0]

    asyncio.run(main())


def test_a_repeated_announcement_ends_when_there_is_a_newer_one():
    async def main():
        async def fail_the_first(serial):
            if serial == 1:
                raise ConnectionError
            return

        shard = Shard(fail_the_first)
        coordinator = await opened([shard])
        await asyncio.gather(coordinator.join("c", 0, 0), coordinator.join("c", 1, 0))
        assert shard.calls[-1] == 2
        assert shard.members == [0, 1]
        while coordinator._telling:
            await asyncio.sleep(0)
        assert not coordinator._telling

    asyncio.run(main())


def test_a_shard_that_never_answers_holds_a_join_up_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(module, "ENROLL_SECONDS", 0.01)

    async def main():
        async def never(serial):
            await asyncio.Event().wait()

        shard = Shard(never)
        coordinator = await opened([shard])
        assert await coordinator.join("c", 0, 0) == 1
        assert coordinator._telling, "it is still being told"

    asyncio.run(main())


def test_a_restarted_coordinator_has_everything_that_was_acknowledged():
    async def main():
        store, shards = Store(), [Shard(), Shard()]
        first = await opened(shards, store)
        for rank in range(3):
            await first.join("c", rank, 0)
        began = await first.begin_training("c", 5.0)
        await first.leave_behind("c", b"rest", {"alias": "name"})
        await first.pass_turn("c", 0)
        await first.mark_dead(1, 0)
        await first.leave("c", 2, 0)

        second = Coordinator(store, shards.__getitem__)
        members = second.memberships["c"]
        assert members.members() == [0]
        assert members.dead == {1: 0}
        assert members.dump() == first.memberships["c"].dump()
        assert (members.rest, members.aliases, members.turn) == (b"rest", {"alias": "name"}, 1)
        assert await second.join("c", 1, 0) == 0, "the dead are not revived"
        assert await second.assign_rank(None) == (1, 1), "an incarnation is never given twice"
        assert await second.begin_training("c", 0.0) == began
        assert await second.method("c") == b"the method"
        assert (await second.dump())["restarts"] == 1

    asyncio.run(main())


def test_a_restarted_coordinator_tells_the_shards_what_they_missed():
    async def main():
        store, shard = Store(), Shard()
        first = await opened([shard], store)
        await first.join("c", 0, 0)
        await first.join("c", 1, 0)
        # It stores a death and is killed before any shard has heard of it.
        first.memberships["c"].mark_dead(1, 0)
        first._save_members("c")
        second = Coordinator(store, lambda k: shard)
        await second.dump()
        while second._telling:
            await asyncio.sleep(0)
        assert (shard.members, shard.dead) == ([0], {1: 0})

    asyncio.run(main())


def test_a_stop_outlives_a_restart():
    async def main():
        store = Store()
        first = await opened([Shard()], store)
        assert not await first.heartbeat(0, 0, [])
        await first.stop()
        assert await Coordinator(store, lambda k: Shard()).heartbeat(0, 0, [])

    asyncio.run(main())


def test_an_earlier_incarnation_is_told_to_stop():
    async def main():
        coordinator = await opened([Shard()])
        assert await coordinator.assign_rank(0) == (0, 1)
        assert await coordinator.heartbeat(0, 0, [])
        assert not await coordinator.heartbeat(0, 1, [])

    asyncio.run(main())


def test_a_launcher_that_ends_stops_its_own_workers_alone():
    """Case 32: a launcher that has joined asks for its workers; also a coordinator that was restarted remembers."""

    async def main():
        store = Store()
        first = await opened([Shard()], store)
        await first.stop([(1, 0)])
        for coordinator in (first, Coordinator(store, lambda k: Shard())):
            assert await coordinator.heartbeat(1, 0, [])
            assert not await coordinator.heartbeat(0, 0, [])

    asyncio.run(main())


def test_a_worker_without_a_heartbeat_is_silent_until_it_ends(monkeypatch):
    """Case 33."""

    async def main():
        now = [100.0]
        coordinator = await opened([Shard()])
        monkeypatch.setattr("easgd.engines.ray.coordinator.time.monotonic", lambda: now[0])
        assert coordinator.held == {0: 0, 1: 0, 2: 0}
        for rank in range(3):
            await coordinator.heartbeat(rank, 0, [], f"{rank} on here")
        now[0] += 3.1
        await coordinator.heartbeat(0, 0, [], "0 on here")
        assert coordinator._silent() == [(1, 0, "1 on here"), (2, 0, "2 on here")]
        await coordinator.mark_dead(1, 0)
        await coordinator.heartbeat(2, 0, [], "2 on here", last=True)
        assert coordinator._silent() == []
        await coordinator.heartbeat(1, 0, [], "1 on here")  # comes late: it has been declared dead
        now[0] += 3.1
        assert [who[0] for who in coordinator._silent()] == [0]

    asyncio.run(main())


def test_a_coordinator_starts_without_torch():
    """It has the shards' handles, for which Ray imports their class: seconds that every worker would wait for."""
    code = (
        "import sys, easgd.engines.ray.coordinator, easgd.engines.ray.calls, easgd.engines.ray.private, "
        "easgd.engines.ray.remote_shard; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_remote_shard_does_all_that_a_shard_does():
    names = {name for name in vars(ShardActor) if not name.startswith("_")}
    assert names == {name for name in vars(RemoteShard) if not name.startswith("_")}
    shard = RemoteShard()
    assert shard.versions() == {}
    assert shard.enroll("c", 1, [0], {}) is False
