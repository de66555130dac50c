"""The history of a center: what is written can be replayed, and what does not follow is named."""

import contextlib
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import easgd
from easgd.center import history as h
from easgd.center.check_history import check
from easgd.center.digests import digest
from easgd.center.history import Frame, History, Journal, Sender, frames
from easgd.center.state import CenterState
from easgd.methods import registry


def recorded(file: io.BytesIO) -> list[Frame]:
    return list(frames(file.getvalue(), "file"))


def center(start=(0.0, 0.0, 0.0, 0.0), method=None, file=None):
    """A center of four elements with a journal, and the bytes that it writes."""
    file = io.BytesIO() if file is None else file
    method = method or easgd.EASGD(moving_rate=0.5)
    state = CenterState(method, method.center_slots(torch.tensor(start)))
    state.journal = Journal(History(file), 0, len(start))
    state.journal.opened(state)
    return state, file


def send(state, rank, sequence, value, scale=0.5, incarnation=0):
    state.journal.history.sender = Sender(rank, incarnation, sequence)
    d = state.exchange(torch.full((4,), value), scale)
    state.journal.history.answer(d, 0)
    return d


def test_by_hand():
    state, file = center()
    send(state, 0, 0, 4.0)  # d = 0.5 (4 − 0) = 2
    send(state, 1, 0, 4.0)  # d = 0.5 (4 − 2) = 1
    state.journal.ended(state)
    report = check(recorded(file))
    assert report.differences == []
    assert report.exchanges == 2
    assert report.x.tolist() == [3.0] * 4 == state.x.tolist()
    kinds = [(f.entry.kind, f.entry.rank, f.entry.sequence, f.entry.version) for f in recorded(file)]
    assert kinds == [
        ("open", -1, -1, 0), ("apply", 0, 0, 0), ("answer", 0, 0, 0), ("apply", 1, 0, 1), ("answer", 1, 0, 0),
        ("end", -1, -1, 2),
    ]  # fmt: skip


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20), st.integers(0, 10**6), st.data())
def test_a_changed_element_changes_the_digest_and_parts_add_up(values, start, data):
    x = torch.tensor(values)
    place = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 31))
    other = x.clone()
    other.view(torch.int32)[place] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert digest(other, start) != digest(x, start)
    cut = data.draw(st.integers(0, len(values)))
    parts = digest(x[:cut], start) + digest(x[cut:], start + cut)
    assert parts % 2**64 == digest(x, start)


# what a replay must find -----------------------------------------------------------------------------------------


def two_exchanges():
    state, file = center()
    send(state, 0, 0, 4.0)
    send(state, 1, 0, 4.0)
    state.journal.ended(state)
    return recorded(file)


def with_entry(found, k, **changes):
    entry = h.msgspec.structs.replace(found[k].entry, **changes)
    return [*found[:k], found[k]._replace(entry=entry), *found[k + 1 :]]


@pytest.mark.parametrize(
    ("k", "changes", "what"),
    [
        (3, {"rank": 0}, "worker 0 incarnation 0 exchange 0 was applied twice, at versions 0 and 1"),
        (1, {"scale": 1.5}, "the scale 1.5: α is in (0, 1]"),
        (1, {"scale": 0.25}, "another digest"),
        (3, {"version": 2}, "the replay is at version 0"),
        (2, {"digest": 7}, "Σxⁱ + x̃ is not conserved"),
        (5, {"digests": {"x": 7}}, "'x' ended with another value"),
        (5, {"version": 3, "clock": [3, 0]}, "the replay is at version 1"),
    ],
)
def test_what_does_not_follow_is_named(k, changes, what):
    assert what in str(check(with_entry(two_exchanges(), k, **changes)))


def test_a_change_that_nobody_wrote_down_is_found():
    state, file = center()
    send(state, 0, 0, 4.0)
    state.slots["x"][2] += 1e-6
    send(state, 1, 0, 4.0)
    found = check(recorded(file))
    assert "version 1" in str(found)
    assert "worker 1" in str(found)
    assert "another digest" in str(found)


def test_a_message_that_is_missing_is_found():
    found = two_exchanges()
    assert "the replay is at version 0" in str(check([*found[:1], *found[3:]]))


def test_an_incarnation_that_has_ended_is_found():
    state, file = center()
    send(state, 0, 0, 1.0, incarnation=1)
    send(state, 0, 1, 1.0, incarnation=0)
    send(state, 1, 0, 1.0)
    assert "incarnation 0 of worker 0 was applied after a later one" in str(check(recorded(file)))


def test_rolls_are_counted_and_numbered():
    file = io.BytesIO()
    history = History(file)
    history.roll(0, [0, 1], 2)
    history.roll(2, [0], 1)
    assert check(recorded(file)).differences == []
    history.roll(1, [0, 1], 2)
    assert "roll 1 came after roll 2" in str(check(recorded(file)))
    history.roll(3, [0, 1, 2], 2)
    assert "members [0, 1, 2], the center counts 2" in str(check(recorded(file)).differences[1])


def test_the_count_at_an_exchange_is_that_of_the_roll():
    state, file = center()
    history = state.journal.history
    history.roll(0, [0, 1], 2)
    history.sender = Sender(0, 0, 0, living=2)
    state.exchange(torch.ones(4), 0.5)
    assert check(recorded(file)).differences == []
    history.roll(1, [1], 1, {0: 0})
    history.sender = Sender(0, 0, 1, living=2)
    state.exchange(torch.ones(4), 0.5)
    counted, dead = check(recorded(file)).differences
    assert "counts 2, roll 1 has 1" in str(counted)
    assert "this incarnation has ended" in str(dead)


# deaths ----------------------------------------------------------------------------------------------------------


def test_an_exchange_that_was_cut_short_is_before_or_after_in_each_element():
    for elements in range(5):
        state, file = center()
        send(state, 0, 0, 4.0)
        history = state.journal.history
        history.sender = Sender(1, 0, 0)
        state.journal.note(state, "apply", torch.full((4,), 6.0), 0.5)  # d = 0.5 (6 − 2) = 2: it dies while it adds
        state.slots["x"][:elements] += 2.0
        send(state, 2, 0, 0.0)
        state.journal.ended(state)
        report = check(recorded(file))
        assert report.differences == [], elements
        assert f"cut short after {elements} of 4" in report.notes[0]
        assert torch.equal(report.x, state.x)


def test_a_worker_that_lives_on_was_not_cut_short():
    state, file = center()
    history = state.journal.history
    history.sender = Sender(1, 0, 0)
    state.journal.note(state, "apply", torch.full((4,), 6.0), 0.5)
    send(state, 2, 0, 0.0)
    send(state, 1, 0, 1.0)
    assert "and its worker went on" in str(check(recorded(file)))


def test_a_round_is_the_sum_of_what_was_added():
    state, file = center(method=easgd.EASGD(moving_rate=0.5, sync=True))
    senders = [Sender(0, 0, 0), Sender(1, 0, 0)]
    state.exchange_all([torch.full((4,), 2.0), torch.full((4,), 4.0)], [0.5, 0.5], [0, 1], senders)
    state.journal.ended(state)
    found = recorded(file)
    report = check(found)
    assert report.differences == []
    assert report.x.tolist() == [3.0] * 4
    assert "not that of the 1 changes" in str(check([*found[:1], *found[2:]]))
    assert "in the order [1, 0]" in str(check(with_entry(with_entry(found, 1, rank=1), 2, rank=0)))


def add(state, rank, value, sequence=1, incarnation=0):
    state.journal.history.sender = Sender(rank, incarnation, sequence)
    state.add_to_round(torch.full((4,), value))


def test_a_worker_that_died_with_the_sum_of_a_round_takes_it_along():
    """In each element the sum is given up or not, and what is added after that counts."""
    state, file = center(method=easgd.EASGD(moving_rate=0.5, sync=True))
    add(state, 0, 1.0)
    add(state, 1, 2.0)
    state.journal.note(state, "round", torch.full((4,), 3.0))  # worker 1 dies while it gives the sum up
    state._total[:2] = 0.0
    add(state, 1, 4.0, sequence=0, incarnation=1)
    state.end_round()
    state.journal.ended(state)
    report = check(recorded(file))
    assert report.differences == []
    assert report.x.tolist() == [4.0, 4.0, 7.0, 7.0]
    assert "has not all that was added" in report.notes[-1]


def test_a_round_is_summed_in_the_order_of_those_who_wait_for_each_other():
    state, file = center(method=easgd.EASGD(moving_rate=0.5, sync=True))
    add(state, 2, 1.0)  # it dies in the round: the next one still has its change
    add(state, 1, 2.0)
    add(state, 0, 3.0, sequence=0, incarnation=1)  # it comes late
    state.end_round()
    add(state, 1, 1.0, sequence=2)
    state.end_round()
    state.journal.ended(state)
    found = recorded(file)
    assert check(found).differences == []
    assert "in the order [2, 1, 0]" in str(check(with_entry(found, 3, sequence=1)))


def test_the_average_of_a_stripe_that_was_cut_short_is_not_known():
    state, file = center(method=easgd.ADownpour())
    state.journal.history.sender = Sender(1, 0, 0)
    state.journal.note(state, "apply", torch.ones(4), 1.0)
    state.slots["average"].fill_(0.5)  # it dies between the two vectors
    send(state, 2, 0, 0.0)
    state.journal.ended(state)
    assert check(recorded(file)).differences == []


def test_a_shard_goes_back_to_a_version_that_has_been():
    state, file = center()
    send(state, 0, 0, 4.0)
    saved = state.x.clone(), state.clock
    send(state, 1, 0, 4.0)
    found = recorded(file)
    again = CenterState(state.method, {"x": saved[0].clone()})
    again.set_clock(saved[1])
    later = io.BytesIO()
    again.journal = Journal(History(later), 0, 4, epoch=1)
    again.journal.opened(again, "restore")
    send(again, 1, 0, 4.0)  # what was lost may be applied anew
    again.journal.ended(again)
    report = check([*found, *recorded(later)])
    assert report.differences == []
    assert torch.equal(report.x, again.x)
    wrong = again.x.clone()
    bad = CenterState(state.method, {"x": wrong})
    bad.set_clock(saved[1])
    later = io.BytesIO()
    bad.journal = Journal(History(later), 0, 4, epoch=1)
    bad.journal.opened(bad, "restore")
    assert "went back to version 1 with another value" in str(check([*found, *recorded(later)]))


# every method, on the simulator ----------------------------------------------------------------------------------


def quadratic(x, worker, step):
    return x - (worker + 1) * 0.1 + 0.01 * step


@pytest.mark.parametrize("schedule", ["async", "round-robin", "sync"])
@pytest.mark.parametrize("key", registry.built_in())
def test_every_method_replays_bit_for_bit(key, schedule):
    kind = registry.get(key)
    given_ = {**kind.presets, **({"sync": schedule == "sync"} if kind.takes("sync") else {})}
    method = kind(**given_, **({"period": 2} if kind.takes("period") else {}))
    workers = 1 if method.sequential else 3
    try:
        method.check_schedule(schedule)
    except easgd.SettingError:
        pytest.skip("undefined on this schedule")
    file = io.BytesIO()
    faults = () if method.sequential else [
        easgd.Fault(1, 3.0, "death"), easgd.Fault(1, 6.0, "join"), easgd.Fault(3, 5.0, "join"),
    ]  # fmt: skip
    run = easgd.simulate(
        quadratic, torch.linspace(0, 1, 7), method, lr=0.05, workers=workers, steps=40, schedule=schedule,
        history=History(file), faults=faults,
    )  # fmt: skip
    report = check(recorded(file))
    assert report.differences == []
    assert torch.equal(report.x, run.center[-1])
    assert report.exchanges > 3
    assert report.rolls == 1 + len(faults)


@pytest.mark.parametrize("compression", ["bf16", "int8"])
@pytest.mark.parametrize("method", [easgd.EASGD(period=2, fragments=2), easgd.Downpour(period=2)])
def test_a_compressed_run_in_double_and_in_parts_replays(method, compression):
    file = io.BytesIO()
    run = easgd.simulate(
        quadratic, torch.linspace(0, 1, 2050), method, lr=0.05, workers=2, steps=20, schedule="async",
        history=History(file), compression=compression,
    )  # fmt: skip
    report = check(recorded(file))
    assert report.differences == []
    assert torch.equal(report.x, run.center[-1])


def test_double_precision_replays():
    file = io.BytesIO()
    run = easgd.simulate(
        quadratic, torch.linspace(0, 1, 5, dtype=torch.float64), easgd.EAMSGD(period=2), lr=0.05, workers=2, steps=20,
        history=History(file),
    )  # fmt: skip
    assert torch.equal(check(recorded(file)).x, run.center[-1])


# files -----------------------------------------------------------------------------------------------------------


def test_a_torn_end_is_left_out_and_damage_is_named(tmp_path):
    path = tmp_path / "a.history"
    state, file = center()
    send(state, 0, 0, 4.0)
    whole = file.getvalue()
    count = len(list(frames(whole)))
    for cut in (1, 30, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert len(list(h.read_file(path))) < count
    damaged = bytearray(whole)
    damaged[40] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"a\.history: the entry at byte 0 is damaged"):
        list(h.read_file(path))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.booleans())
def test_no_bytes_make_the_reader_do_more_than_say_so(noise, place, insert):
    state, file = center()
    send(state, 0, 0, 4.0)
    whole = file.getvalue()
    place = min(place, len(whole))
    mutated = whole[:place] + noise + whole[place + (0 if insert else len(noise)) :]
    with contextlib.suppress(ValueError):
        check(list(frames(mutated, "file")))


def test_a_full_disk_ends_the_history_and_not_the_training(capfd):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    state, _ = center(file=Full())
    assert send(state, 0, 0, 4.0).tolist() == [2.0] * 4
    assert "the history of the center ends here" in capfd.readouterr().err
