"""Signals are taken for a while, and mean afterwards what they meant before."""

import os
import signal
import threading

import pytest

from easgd.signals import handle_signals


@pytest.fixture(autouse=True)
def as_it_was():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_handler_has_them_for_a_while():
    seen, before = [], signal.getsignal(signal.SIGTERM)
    with handle_signals(lambda number, frame: seen.append(number), signal.SIGHUP):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert seen == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    assert signal.getsignal(signal.SIGTERM) is before


def test_nohup_is_respected():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handle_signals(lambda number, frame: pytest.fail("taken"), signal.SIGHUP):
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_taken():
    found = []

    def elsewhere():
        with handle_signals(lambda number, frame: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
