"""The laboratory's machines and link: made, slowed, cut, mended, and removed however their owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from easgd.bench.link import guardian, network, speeds
from easgd.bench.link.network import Network, discipline
from easgd.cli import main
from launching import alive, until

OWNER = """
import sys, time
from easgd.bench.link.network import Network
net = Network()
inside = net.start(1, ["sleep", "1000"])
print(net._guardian.pid, inside.pid, *net.names, net.folder, flush=True)
time.sleep(1000)
"""
needs_root = pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))


@pytest.fixture
def owner():
    """Start a process that owns a laboratory; yield it and what it has made."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    guard, inside, *names, folder = process.stdout.readline().split()
    yield process, int(guard), int(inside), names, Path(folder)
    process.kill()
    process.wait()


def there(names, folder):
    return [*(name for name in names if Path("/run/netns", name).exists()), *([folder] if folder.exists() else [])]


@needs_root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_ends(owner, number):
    process, guard, inside, names, folder = owner
    assert len(there(names, folder)) == 3
    os.kill(process.pid, number)
    until(lambda: not alive(guard), "the guardian has ended", 30)
    assert not alive(inside)
    assert not there(names, folder)


@needs_root
def test_what_a_killed_guardian_left_is_removed_by_the_next_laboratory(owner):
    process, guard, inside, names, folder = owner
    guardian.clean_stale()
    assert len(there(names, folder)) == 3, "its owner lives"
    os.kill(guard, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(there(names, folder)) == 3
    assert names[0][:-2] in guardian.clean_stale()
    assert not there(names, folder)
    until(lambda: not alive(inside), "its process has ended", 10)


@needs_root
def test_two_laboratories_do_not_meet():
    with Network() as one, Network() as two:
        inside = one.start(0, ["sleep", "1000"])
        assert two.pids(0) == []
        two.close()
        assert one.pids(0) == [inside.pid]
    inside.wait(10)
    assert one.pids(0) == []


def test_the_link_has_the_speed_that_it_was_given(lab):
    """A token bucket never lets more through; how much less depends on the load of the machine."""
    for mbit in (20, 80):
        lab.shape(mbit)
        assert 0.3 * mbit < speeds.measure(lab, 0, round(mbit * 50_000)) < 1.05 * mbit


def test_a_cut_link_lets_nothing_through_and_is_mended_at_its_speed(lab):
    lab.shape(50)
    lab.cut(1)
    assert kinds(lab) == ["tbf", "blackhole"]
    lab.cut()
    lab.shape(20)
    assert kinds(lab) == ["blackhole", "blackhole"]
    sent = connect(lab, 0)
    assert sent.communicate(timeout=20)[0].strip() in ("timed out", "TimeoutError")
    lab.mend()
    assert kinds(lab) == ["tbf", "tbf"]
    assert speeds.measure(lab, 1, 1_000_000) < 21
    lab.shape(None)
    assert kinds(lab) == ["noqueue", "noqueue"]


def kinds(lab):
    """Return the queueing discipline of each end."""
    show = ("qdisc", "show", "dev", network.DEVICE)
    return [network.system("tc", "-n", name, *show).split()[1] for name in lab.names]


def connect(lab, machine):
    program = f"""
import socket
try:
    socket.create_connection(({lab.addresses[1 - machine]!r}, {speeds.PORT}), 1.0)
except OSError as error:
    print(error or type(error).__name__)
"""
    return lab.python("-c", program, machine=machine, stdout=subprocess.PIPE, text=True)


def test_what_tc_is_told():
    assert discipline(None) == ("noqueue",)
    assert discipline(10) == ("tbf", "rate", "10000000bit", "burst", "32000", "latency", "50ms")
    assert discipline(1000)[4] == "250000"


@pytest.mark.parametrize(
    ("change", "why"), [({"euid": 1000}, "as root"), ({"path": ""}, "iproute2"), ({"platform": "darwin"}, "on Linux")]
)
def test_a_machine_that_cannot_is_told_in_one_line(monkeypatch, capsys, change, why):
    monkeypatch.setattr(os, "geteuid", lambda: change.get("euid", 0))
    monkeypatch.setattr(sys, "platform", change.get("platform", "linux"))
    if "path" in change:
        monkeypatch.setenv("PATH", change["path"])
    assert main(["bench", "link"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert why in line


@needs_root
def test_a_speed_of_nothing_is_refused():
    with Network() as net, pytest.raises(ValueError, match="mbit = 0"):
        net.shape(0)
