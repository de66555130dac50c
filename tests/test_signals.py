"""Signals are handled inside a block, and have their former handlers afterwards."""

import os
import signal
import threading

import pytest

from easgd.signals import StopRequest, handle_signals


@pytest.fixture(autouse=True)
def as_it_was():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_handler_is_called_inside_the_block_only():
    seen, before = [], signal.getsignal(signal.SIGTERM)
    with handle_signals(lambda number, frame: seen.append(number)):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert seen == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_sighup_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handle_signals(lambda number, frame: pytest.fail("handled")):
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_outside_the_main_thread_nothing_changes():
    found = []

    def elsewhere():
        with handle_signals(lambda number, frame: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_the_first_signal_requests_a_stop_and_the_second_interrupts():
    class Runner:
        stop_requested = False

    request, early, late = StopRequest(), Runner(), Runner()
    request.tell(early)
    assert not early.stop_requested
    request(signal.SIGINT, None)
    assert early.stop_requested
    request.tell(late)  # named after the signal: it still has to stop
    assert late.stop_requested
    with pytest.raises(KeyboardInterrupt):
        request(signal.SIGINT, None)
