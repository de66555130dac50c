"""Lines of a run's records that are none: torn, nested, or of the wrong types."""

import math

import pytest

from easgd.records import Event, parse

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
