"""Cursors shared by processes: every chunk goes to one worker, and a killed worker stops nobody."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

from easgd.data import Sampler, Scheme
from easgd.data.cursors import Ring, SharedCursors
from easgd.errors import SettingError

RINGS = [Ring(0, 1000, 0), Ring(0, 1000, 500)]


def shared(path, **change):
    return SharedCursors(**({"rings": RINGS, "chunk": 7, "batch": 16, "seed": 0} | change), path=path)


TAKE = """
import json, sys
from easgd.data.cursors import Ring, SharedCursors
cursors = SharedCursors([Ring(0, 1000, 0), Ring(0, 1000, 500)], 7, 16, 0, sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
chunks = [cursors.take(loader) for _ in range(int(sys.argv[2])) for loader in (0, 1)]
print(json.dumps([(c.loader, c.cycle, c.first, c.last) for c in chunks]), flush=True)
"""


def start(script, *args):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_three_processes_share_every_chunk_once(tmp_path):
    path = tmp_path / "cursors"
    children = [start(TAKE, path, 2000) for _ in range(3)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    outputs = []
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        outputs += [tuple(row) for row in json.loads(out)]
    assert len(outputs) == 12000
    assert Counter(outputs).most_common(1)[0][1] == 1
    # together they are exactly what one process would have been given
    alone = shared(tmp_path / "alone")
    expected = {(c.loader, c.cycle, c.first, c.last) for c in (alone.take(i % 2) for i in range(12000))}
    assert set(outputs) == expected


HOLD = """
import sys
from easgd.data.cursors import Ring, SharedCursors
cursors = SharedCursors([Ring(0, 1000, 0), Ring(0, 1000, 500)], 7, 16, 0, sys.argv[1])
cursors.take(0)
with cursors._locked(0):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_worker_killed_while_it_holds_a_cursor_stops_nobody(tmp_path):
    path = tmp_path / "cursors"
    mine = shared(path)
    child = start(HOLD, path)
    assert child.stdout.readline() == "held\n"
    # the other loader is free, this one is taken
    assert mine.take(1).first == 500
    taken = []
    thread = threading.Thread(target=lambda: taken.append(mine.take(0)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    child.send_signal(signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    # the dead worker's chunk 0-7 is gone with it until the next cycle; the file goes on after it
    assert (taken[0].first, taken[0].last) == (7, 14)
    child.communicate()


def test_threads_of_one_process_exclude_each_other(tmp_path):
    """Record locks alone would let them pass: they belong to the process."""
    cursors = shared(tmp_path / "cursors")
    taken = []
    threads = [threading.Thread(target=lambda: taken.extend(cursors.take(0) for _ in range(500))) for _ in range(4)]
    with cursors._locked(0):
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert taken == []
    for thread in threads:
        thread.join()
    assert len({(c.cycle, c.first) for c in taken}) == 2000


def test_a_second_sampler_in_one_process_shares_the_open_file(tmp_path):
    """Closing a second descriptor would drop the first one's locks: there must not be a second."""
    path = tmp_path / "cursors"
    a = shared(path)
    before = len(os.listdir("/proc/self/fd"))
    b = shared(path.parent / "." / "cursors")
    assert len(os.listdir("/proc/self/fd")) == before
    assert [c.first for c in (a.take(0), b.take(0), a.take(0))] == [0, 7, 14]


def test_a_recreated_file_is_a_new_one(tmp_path):
    path = tmp_path / "cursors"
    a = shared(path)
    a.take(0)
    path.unlink()
    assert shared(path).take(0).first == 0


@pytest.mark.parametrize("change", [{"chunk": 8}, {"batch": 17}, {"seed": 1}, {"rings": RINGS[:1]}])
def test_a_file_of_another_run_is_refused(tmp_path, change):
    path = tmp_path / "cursors"
    shared(path)
    with pytest.raises(SettingError, match="another path"):
        shared(path, **change)
    assert shared(path).take(0).first == 0


def test_a_creator_killed_half_way_is_replaced(tmp_path):
    path = tmp_path / "cursors"
    size = shared(tmp_path / "other").path.stat().st_size
    path.write_bytes(b"\0" * 8 + b"rubbish".ljust(size - 8))  # no magic yet
    assert [shared(path).take(i).first for i in (0, 1)] == [0, 500]


def test_the_furthest_checkpoint_wins(tmp_path):
    """Workers save at different moments and restore in any order."""
    scheme = Scheme(batch=16, loaders=2, chunk=10)
    first, second = (Sampler(1000, scheme, cursors=tmp_path / "a") for _ in range(2))
    states = []
    for _ in range(3):
        first.next(0)
        states.append(first.state_dict())
        second.next(1)
        states.append(second.state_dict())
    for i, order in enumerate(itertools.permutations((states[-2], states[-1]))):
        resumed = [Sampler(1000, scheme, cursors=tmp_path / f"b{i}") for _ in range(2)]
        for sampler, state in zip(resumed, order, strict=True):
            sampler.load_state_dict(state)
        assert resumed[0].cursors.snapshot().tolist() == states[-1]["cursors"].tolist()


def test_shared_cursors_deal_what_private_ones_deal(tmp_path):
    scheme = Scheme(batch=16, loaders=3, chunk=10)
    private, public = Sampler(333, scheme), Sampler(333, scheme, cursors=tmp_path / "c")
    for i in range(200):
        assert private.next(i % 5).tolist() == public.next(i % 5).tolist()
