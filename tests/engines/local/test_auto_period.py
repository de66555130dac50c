"""`period="auto"` between real processes: a worker says when its period changes, and rounds have one period."""

import pytest

import easgd
import functions
from easgd.records import Event, read_records


@pytest.mark.parametrize("sync", [True, False])
def test_periods_of_two_processes(sync, tmp_path):
    result = easgd.run(functions.train_with_own_period, workers=2, args=(sync,), out=tmp_path / "out")
    assert result.exit_codes == [0, 0]
    events = [r for r in read_records(tmp_path / "out") if isinstance(r, Event) and r.event == "period"]
    last = {event.worker: event.detail.split(":")[0] for event in events}
    # An exchange of 0.5 s is waited for: 50 steps of 1 s, 25 of 2 s, hide it. In rounds all take the longest.
    assert last == ({0: "10 → 50", 1: "10 → 50"} if sync else {0: "10 → 50", 1: "10 → 25"})
