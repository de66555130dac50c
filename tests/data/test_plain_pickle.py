"""The reader of plain pickles: any file of N bytes costs O(N), whatever is in it."""

import contextlib
import pickle
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.data.plain_pickle import DEEPEST, load_plain
from easgd.errors import SettingError

BATCH = pickle.dumps(
    {b"batch_label": b"1 of 5", b"labels": [3, 7], b"data": np.arange(6, dtype=np.uint8).reshape(2, 3)}, protocol=2
)


def nested(levels, start=()):
    value = start
    for _ in range(levels):
        value = (value, value)
    return value


DOUBLING = b"\x80\x02)" + b"2\x86" * 30 + b"."  # DUP TUPLE2, thirty times
MEMO_DOUBLING = b"\x80\x02K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 8 + b"."
KEY = b"\x80\x02}" + pickle.dumps(nested(20, 1), protocol=2)[2:-1] + b"K\x01s."
HUGE_MEMO = b"\x80\x02K\x01r\xff\xff\xff\x7f."  # LONG_BINPUT 2³¹ − 1: the unpickler's memo would take 32 GB
HUGE_BYTES = b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"abc."
REPEATED_TEXT = (
    b"\x80\x02]q\x01(c_codecs\nencode\nq\x02X" + (1 << 16).to_bytes(4, "little") + b"a" * (1 << 16) + b"q\x03X"
    b"\x06\x00\x00\x00latin1\x86q\x04R" + b"h\x02h\x04R" * 20_000 + b"e."
)


@pytest.mark.parametrize("data", [DOUBLING, MEMO_DOUBLING, KEY, HUGE_MEMO, HUGE_BYTES, REPEATED_TEXT])
def test_small_files_cannot_ask_for_much(data):
    tracemalloc.start()
    begun = time.process_time()
    with contextlib.suppress(SettingError):
        load_plain(data, "here")
    assert time.process_time() - begun < 5  # of this process, however busy the machine is
    assert tracemalloc.get_traced_memory()[1] < 1_000_000 + 100 * len(data)
    tracemalloc.stop()


def test_the_doubling_tuple_is_refused():
    data = pickle.dumps(nested(20, 1), protocol=2)
    with pytest.raises(SettingError, match="repeats a container"):
        load_plain(data, "here")


def test_depth_is_bounded():
    value = 1
    for _ in range(DEEPEST):
        value = [value]
    assert load_plain(pickle.dumps(value), "here") == value
    with pytest.raises(SettingError, match="deep"):
        load_plain(pickle.dumps([value]), "here")


def test_instructions_are_bounded():
    with pytest.raises(SettingError, match="instructions"):
        load_plain(b"}" * 2_000_000, "here")


@pytest.mark.filterwarnings("ignore:invalid escape")
@settings(max_examples=300, deadline=2000)
@given(st.lists(st.tuples(st.integers(0, len(BATCH) - 1), st.binary(min_size=0, max_size=6)), min_size=1, max_size=4))
def test_mutated_files_are_read_or_refused(changes):
    data = BATCH
    for position, replacement in changes:
        data = data[:position] + replacement + data[position + 1 :]
    tracemalloc.start()
    with contextlib.suppress(SettingError):
        load_plain(data, "here")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_file_of_python_2_is_read():
    """The instructions of the original CIFAR-10 batches, with an array of 2 × 3 bytes."""
    data = (
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\teU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
        b"cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\tRq\n(K\x01K\x02K\x03\x86q\x0bcnumpy\ndtype\nq\x0c"
        b"U\x02u1q\rK\x00K\x01\x87q\x0eRq\x0f(K\x03U\x01|q\x10NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x11b"
        b"\x89T\x06\x00\x00\x00\x00\x01\xff\x80\x7f\x05q\x12tq\x13bu."
    )
    read = load_plain(data, "here")
    assert read[b"labels"] == [6, 9]
    assert read[b"data"].tolist() == [[0, 1, 255], [128, 127, 5]]


def test_one_array_may_stand_in_two_places():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for protocol in range(5):
        first, second = load_plain(pickle.dumps([array, array.T], protocol=protocol), "here")
        assert np.array_equal(first, array)
        assert np.array_equal(second, array.T)
        assert np.array_equal(*load_plain(pickle.dumps([array, array], protocol=protocol), "here"))
