"""A group that loses a rank."""

from __future__ import annotations

import easgd
import grouping
from easgd.records import Event, Step


def test_a_killed_rank_ends_its_group_which_starts_again_from_the_center(tmp_path):
    result = easgd.run(
        grouping.lose_a_rank, workers=2, args=(str(tmp_path),), nproc_per_worker=2, restarts=1, out=tmp_path / "out"
    )
    assert result.exit_codes == [0, 0]
    events = [r for r in result.records if isinstance(r, Event)]
    assert [(e.worker, e.detail) for e in events if e.event == "death"] == [(0, "rank 1 of its 2: signal SIGKILL")]
    assert [e.worker for e in events if e.event == "restart"] == [0]
    assert [(tmp_path / f"back-{member}").read_text() for member in range(2)] == ["True", "True"]
    # Starting two processes takes seconds; the other group went on meanwhile, and no step of it waited for them.
    steps, slowest = (tmp_path / "steps").read_text().split()
    assert int(steps) > 5
    assert float(slowest) < 10.0
    waited = sum(r.waiting for r in result.records if isinstance(r, Step) and r.worker == 1)
    assert waited < 5.0
    logs = {path.name for path in (tmp_path / "out" / "logs").iterdir()}
    assert logs == {f"worker-{rank}.{member}.log" for rank in range(2) for member in range(2)}
