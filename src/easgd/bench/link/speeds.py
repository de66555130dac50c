"""`easgd bench link`: plain TCP between the laboratory's machines, relative to the speed that the link was given.

The bare link has no such speed; its reference is its own other direction.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from easgd.bench import Row
from easgd.bench.link.laboratory import Laboratory
from easgd.bench.link.network import SPEEDS

PORT, CONNECT_SECONDS = 5000, 20.0
SECONDS, BARE_MBIT = 1.5, 4000
"""How long a measurement should take, and what is assumed of the bare link for that."""


def rows(speeds: Sequence[float | None] = SPEEDS) -> list[Row]:
    """Measure both directions at every speed."""
    with Laboratory() as lab:
        return [row for mbit in speeds for row in _rows(lab, mbit)]


def _rows(lab: Laboratory, mbit: float | None) -> list[Row]:
    lab.shape(mbit)
    size = round((mbit or BARE_MBIT) * 1e6 / 8 * SECONDS)
    rates = [measure(lab, sender, size) for sender in (0, 1)]
    name = "not shaped" if mbit is None else f"{mbit:g} Mbit/s"
    return [
        Row(f"TCP, {name}, machine {sender} sends", rate, "Mbit/s", limit := mbit or rates[1 - sender], rate / limit)
        for sender, rate in enumerate(rates)
    ]


def measure(lab: Laboratory, sender: int, size: int) -> float:
    """Return the Mbit/s at which one machine sends this many bytes to the other over one connection."""
    module = ("-m", "easgd.bench.link.speeds")
    receiver = lab.python(*module, "receive", machine=1 - sender, stdout=subprocess.PIPE, text=True)
    done = lab.python(*module, "send", lab.addresses[1 - sender], str(size), machine=sender)
    out, _ = receiver.communicate(timeout=CONNECT_SECONDS + 30 * SECONDS)
    if done.wait(CONNECT_SECONDS) or receiver.returncode:
        raise RuntimeError("no bytes went over the link; is it cut?")
    got, seconds = json.loads(out)
    return float(got * 8e-6 / seconds)


def receive() -> None:
    """Print the bytes that one connection brought and the seconds from the first to the last of them."""
    with socket.create_server(("", PORT)) as server:
        server.settimeout(CONNECT_SECONDS)
        sock, _ = server.accept()
    buffer = bytearray(1 << 20)
    # The first bytes fill the bucket of `tbf` at once: they start the clock and are not counted.
    sock.recv_into(buffer)
    start, got = time.perf_counter(), 0
    while size := sock.recv_into(buffer):
        got += size
    print(json.dumps([got, time.perf_counter() - start]))


def send(address: str, size: int) -> None:
    """Send bytes to the receiver as soon as it listens."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            sock = socket.create_connection((address, PORT), 1.0)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    with sock:
        sock.settimeout(None)
        sock.sendall(bytes(size))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(sys.argv[2], int(sys.argv[3]))
