"""Temporary folders: those of killed processes are removed by the next one, all others stay."""

import os
import signal
import subprocess
import sys

from easgd.launch.scratch import OWNER, clean_scratch, make_scratch, remove_scratch

MAKES = """
import sys, signal
from easgd.launch.scratch import make_scratch
print(make_scratch("easgd-other-", sys.argv[1]), flush=True)
signal.pause()
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    """Cases 24, 27."""
    mine = make_scratch("easgd-mine-", str(tmp_path))
    foreign = tmp_path / "easgd-not-ours"
    foreign.mkdir()
    other = subprocess.Popen([sys.executable, "-c", MAKES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        left = other.stdout.readline().strip()
        assert clean_scratch(str(tmp_path)) == [], "both live"
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.communicate()
    assert os.path.exists(left)
    second = make_scratch("easgd-mine-", str(tmp_path))
    assert not os.path.exists(left)
    remove_scratch(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.name, foreign.name])
    remove_scratch(mine)


def test_weights_that_a_killed_worker_saved_stay(tmp_path):
    folder = tmp_path / "easgd-run-0-x"
    folder.mkdir()
    (folder / OWNER).touch()
    (folder / "weights-0.safetensors").touch()
    assert clean_scratch(str(tmp_path)) == []
    (folder / "weights-0.safetensors").unlink()
    assert clean_scratch(str(tmp_path)) == [folder]
