"""Lines of a run's records that are none: torn, nested, or of the wrong types."""

import gzip
import math

import pytest

from easgd.errors import SettingError
from easgd.launch.event_log import loss_summary
from easgd.records import Event, logged, parse, read_records
from easgd.worker.recorder import Recorder

STEP = '{"event":"step","worker":1,"clock":2,"time":1,"compute":NaN,"data":0,"communication":0,"waiting":0,"later":1}'


def test_a_step_and_an_event():
    step = parse(STEP)
    assert (step.worker, step.clock, step.time) == (1, 2, 1.0)
    assert math.isnan(step.compute)
    assert parse('{"event": "join", "time": 1.5, "worker": null}') == Event("join", 1.5, None)


@pytest.mark.parametrize(
    "line",
    [
        STEP[:-20], STEP.replace('"clock":2', '"clock":[2]'), STEP.replace('"time":1', '"time":"soon"'), "[" * 100_000,
        STEP.replace('"worker":1', '"worker":"=cmd()"'), '{"event":"join","worker":1,"time":1' + "0" * 400 + "}", "[]",
        "null", '{"event":[],"time":1,"worker":0}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_left_out(line):
    assert parse(line) is None


def test_what_is_logged_after_the_last_step_is_recorded(tmp_path):
    recorder = Recorder(1, 0, tmp_path)
    recorder.log({"own": 0.5, "loss": 2.0})
    recorder.step(0, None, None, 0)
    recorder.log({"own": 0.25, "center": 0.125})
    recorder.close()
    step, late = read_records(tmp_path)
    assert (logged(step), step.loss) == ({"own": 0.5}, 2.0)
    assert (late.event, logged(late)) == ("log", {"own": 0.25, "center": 0.125})
    assert "center 0.1250" in loss_summary(tmp_path)[-1]
    assert logged(Event("log", 0.0, 1, "[1]")) == logged(Event("leave", 0.0, 1)) == {}


def test_packed_records_are_read_and_damaged_ones_named(tmp_path):
    lines = "".join(STEP.replace('"clock":2', f'"clock":{k}') + "\n" for k in range(500)).encode()
    path, packed = tmp_path / "records-1-0.jsonl.gz", gzip.compress(lines)
    path.write_bytes(packed)
    assert [step.clock for step in read_records(tmp_path)] == [*range(500)]
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :]
    for damaged in (packed[:middle], flipped, b"no gzip"):
        path.write_bytes(damaged)
        with pytest.raises(SettingError, match=rf"{path.name}: the packed records are damaged .*; copy the file again"):
            list(read_records(tmp_path))
