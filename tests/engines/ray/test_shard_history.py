"""The history of a shard: repeated, late and lost messages, rounds and rollbacks leave one that explains itself."""

import io

import pytest
import torch

import easgd
from easgd.center.check_history import check, check_folder
from easgd.center.history import History, Sender, frames
from easgd.engines.ray.messages import Kind, Status
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.shard_actor import ShardActor
from shards_by_hand import ELASTIC, N, ask, enroll, make

torch.manual_seed(0)


def recorded(shard, at=0, restored=False):
    file = io.BytesIO()
    shard.record(History(file), at, restored=restored)
    return file


def checked(shard, *files):
    shard.end_record()
    report = check([frame for k, file in enumerate(files) for frame in frames(file.getvalue(), f"file {k}")])
    assert report.differences == [], str(report)
    assert torch.equal(report.x, shard.center.x)
    return report


@pytest.mark.parametrize("codec", [None, "bf16", "int8"])
@pytest.mark.parametrize("method", [ELASTIC, easgd.Downpour(), easgd.AsyncDiLoCo(period=2)])
def test_exchanges_that_are_asked_for_again_are_in_it_once(method, codec):
    """Cases 3, 7, 34."""
    shard = make(method, codec)
    file = recorded(shard)
    for sequence in range(3):
        for rank in (0, 1):
            x = torch.randn(N)
            assert ask(shard, rank, sequence, x)[0] in (Status.DONE, Status.PLAIN)
            ask(shard, rank, sequence, x)  # the answer was lost on the way
    enroll(shard, [1], {0: 0})
    assert ask(shard, 0, 9, torch.randn(N))[0] == Status.ZOMBIE
    report = checked(shard, file)
    assert report.exchanges == 6
    assert report.rolls == 1


def test_a_message_applied_twice_is_found():
    """Were the ledger not asked, the second asking would be applied: the history names it."""
    shard = make()
    file = recorded(shard)
    ask(shard, 0, 0, torch.ones(N))
    shard.ledger.entries[0, 0].sequence = -1
    ask(shard, 0, 0, torch.ones(N))
    shard.end_record()
    report = check(frames(file.getvalue(), "shard"))
    assert "worker 0 incarnation 0 exchange 0 was applied twice, at versions 0 and 1" in str(report)


def test_a_shard_that_goes_back_has_the_bits_of_its_checkpoint():
    """Case 8: what was applied after the checkpoint is gone, what is applied then follows."""
    shard = make()
    first = recorded(shard)
    ask(shard, 0, 0, torch.randn(N))
    saved = shard.state()
    ask(shard, 1, 0, torch.randn(N))
    again = Shard(ELASTIC, None, ELASTIC.center_slots(torch.zeros(N)))
    again.load(saved)
    second = recorded(again, restored=True)
    enroll(again, [0, 1], {})
    assert ask(again, 1, 0, torch.randn(N))[0] == Status.DONE
    assert checked(again, first, second).exchanges == 2  # of the one that was lost nobody knows whether it was made


def test_the_actor_writes_its_files_and_begins_a_new_one_when_it_is_restored(tmp_path):
    """Case 8, as the supervisor does it: each epoch has a file of its own, and workers add what they took."""
    actor = ShardActor()
    slots = {"x": torch.zeros(N).numpy()}
    actor.open("center", ELASTIC, None, slots, history=str(tmp_path))
    actor.enroll("center", 0, [0], {})
    worker = History(tmp_path / "center" / "worker-0-0.history")

    def exchange(sequence):
        x = torch.randn(N).numpy()
        _, answer = actor.exchange(("center", 0, 0, sequence, Kind.EXCHANGE, 0.5), x.view("uint8"))
        worker.sender = Sender(0, 0, sequence)
        worker.answer(torch.from_numpy(answer).view(torch.float32), 0)

    exchange(0)
    saved = actor.take("center", None, "")
    exchange(1)
    actor = ShardActor()
    actor.restore("center", ELASTIC, "float32", saved, 1, [0], {}, history=str(tmp_path))
    exchange(2)
    actor.end_record()
    names = sorted(path.name for path in (tmp_path / "center").iterdir())
    assert names == ["shard-0-0.history", "shard-0-1.history", "worker-0-0.history"]
    report = check_folder(tmp_path / "center")
    assert report.differences == [], str(report)
    assert torch.equal(report.x, actor.shards["center"].center.x)


def test_a_shard_on_another_machine_writes_nothing(tmp_path):
    actor = ShardActor()
    actor.open("center", ELASTIC, None, {"x": torch.zeros(N).numpy()}, history=str(tmp_path / "elsewhere"))
    actor.end_record()
    assert not any(tmp_path.iterdir())


def test_a_round_and_two_shards():
    method = easgd.EASGD(period=1, moving_rate=0.3, sync=True)
    shards = [Shard(method, None, method.center_slots(torch.zeros(n))) for n in (N, 10)]
    files = [recorded(shard, at) for shard, at in zip(shards, (0, N), strict=True)]
    for shard in shards:
        enroll(shard, [0], {})
        ask(shard, 0, 0, torch.ones(shard.size), Kind.TOGETHER)
        shard.end_record()
    report = check([frame for k, file in enumerate(files) for frame in frames(file.getvalue(), str(k))])
    assert report.differences == []
    assert report.x.tolist() == [0.5] * (N + 10)
