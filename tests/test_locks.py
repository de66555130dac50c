"""Record locks within one process: one descriptor for each file, whatever its threads do at the same time."""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest

from easgd import locks
from easgd.locks import RecordLocks


def test_threads_that_open_and_drop_the_same_locks_never_meet_a_closed_file(tmp_path):
    """One thread's last reference goes while another one opens: it got an object whose descriptor was closed."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(1000):
                one = RecordLocks.of(tmp_path / "locks")
                with one.threads, one.hold(0):
                    pass
                del one
        except BaseException as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places all the time
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []


def test_the_file_is_opened_once_and_closed_with_its_last_user(tmp_path):
    path = tmp_path / "locks"
    one = RecordLocks.of(path)
    assert RecordLocks.of(path) is one
    descriptor = one.file
    assert os.fstat(descriptor).st_ino == path.stat().st_ino
    del one
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert not [file for file in locks._FILES.values() if file.descriptor == descriptor]


def test_locks_taken_while_the_last_user_leaves_are_kept(tmp_path):
    """A file that were opened anew before the old descriptor is closed would lose its locks by that close."""
    path = tmp_path / "locks"
    one = RecordLocks.of(path)
    use, descriptor = one._use, one.file  # the old one's end is under way: its weak reference is gone, its file is open
    del one
    again = RecordLocks.of(path)
    assert again.file == descriptor
    del use
    gc.collect()
    os.fstat(again.file)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_while_the_file_is_opened_leaves_no_trace(tmp_path, monkeypatch, error):
    """Ctrl-C while a run began printed the traceback of a finalizer."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)

    def interrupted(*_: object) -> int:
        raise error

    (tmp_path / "locks").touch()
    with monkeypatch.context() as patch:
        patch.setattr(locks.os, "open", interrupted)
        with pytest.raises(error):
            RecordLocks.of(tmp_path / "locks")
    gc.collect()
    assert ignored == []
