"""`easgd bench wire`: one exchange with a shard of the center on the same Ray node and on another, in GB/s.

Bytes count in both directions: an exchange of n float32 sends 4n and receives 4n. The references are measured in turn
in the same process: the same bytes there and back over a plain loopback socket, the machine's limit, and gloo's send
and recv. Both nodes are on this machine; a real network has its own limit.

With fragments a step waits for a part of the vector at most. The longest stall is taken at the worker: from its message
until it has subtracted the answer from x, the longest of the fragments in turn, against that of the whole vector; both
are medians over the rounds.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from easgd.bench import Row
from easgd.bench.nodes import HEAD, SECOND, TwoNodes

MEGABYTES = (4, 100, 400)
ROUNDS = {4: 25, 100: 7, 400: 5}
FRAGMENTS = 8


class EchoActor:
    """The other end of the reference measurements: sends every message back."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.buffer = torch.empty(0, dtype=torch.uint8)

    def listen(self, host: str) -> int:
        """Serve one connection on a thread, returning each message preceded by its length; return the port."""
        server = socket.create_server((host, 0))

        def serve() -> None:
            sock, _ = server.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while size := int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "little"):
                self._fit(size)
                view = self.buffer.numpy().data[:size]
                _fill(sock, view)
                sock.sendall(view)

        threading.Thread(target=serve, daemon=True).start()
        return int(server.getsockname()[1])

    def gloo(self, path: str, sizes: list[int]) -> None:
        """Join a process group as rank 1 and send back messages of the given sizes."""
        group(path, 1)
        for size in sizes:
            self._fit(size)
            torch.distributed.recv(self.buffer[:size], 0)
            torch.distributed.send(self.buffer[:size], 0)
        torch.distributed.destroy_process_group()

    def _fit(self, size: int) -> None:
        if self.buffer.numel() < size:
            self.buffer = torch.zeros(size, dtype=torch.uint8)


class Meter:
    """The worker's end: times exchanges and the references in turn."""

    def measure(
        self, host: Any, echo: Any, ip: str, secret: bytes, megabytes: int, path: str, fragments: int
    ) -> dict[str, float]:
        """Return the median seconds of each case, and some longest, for messages of this many megabytes."""
        import ray

        from easgd.engines.ray.actor_link import ActorLink
        from easgd.engines.ray.messages import Kind, Request, ShardLink, Status
        from easgd.engines.ray.sockets import SocketLink
        from easgd.methods import EASGD

        torch.set_num_threads(1)
        n, rounds, center = megabytes * 250_000, ROUNDS[megabytes], f"{megabytes}-{ip}"
        ray.get(host.open.remote(center, EASGD(moving_rate=0.1), None, {"x": torch.rand(n).numpy()}))
        message, into = torch.rand(n).view(torch.uint8), torch.zeros(4 * n, dtype=torch.uint8)
        address = tuple(ray.get(host.address.remote(secret)))
        links: dict[str, ShardLink] = {"sockets": SocketLink(address, secret), "Ray's calls": ActorLink(host)}
        port = ray.get(echo.listen.remote(ip))
        raw = socket.create_connection((ip, port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = echo.gloo.remote(path, [4 * n] * (rounds + 1))
        group(path, 0)
        sequence = 0

        def exchange(link: ShardLink) -> None:
            nonlocal sequence
            link.send(Request(center, 0, 0, sequence, Kind.EXCHANGE, 0.1), message)
            reply, size = link.receive(60.0, into)
            assert (reply.status, size) == (Status.DONE, 4 * n)
            sequence += 1

        def tcp() -> None:
            raw.sendall((4 * n).to_bytes(8, "little"))
            raw.sendall(message.numpy().data)
            _fill(raw, into.numpy().data)

        def gloo() -> None:
            torch.distributed.send(message, 1)
            torch.distributed.recv(into, 1)

        calls: dict[str, Callable[[], None]] = {
            "sockets": lambda: exchange(links["sockets"]),
            "tcp": tcp,
            "Ray's calls": lambda: exchange(links["Ray's calls"]),
            "gloo": gloo,
        }
        times: dict[str, list[float]] = {name: [] for name in (*calls, "stall", "stall in parts")}
        whole, parts = (Stalls(host, f"{center} in {p}", address, secret, n, p) for p in (1, fragments))
        for round_ in range(rounds + 1):
            longest = {"stall": whole.longest(), "stall in parts": parts.longest()}
            for name, stall in longest.items() if round_ else ():
                times[name].append(stall)
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if round_:
                    times[name].append(time.perf_counter() - start)
        torch.distributed.destroy_process_group()
        ray.get(end)
        for one in (links["sockets"], raw, whole.client.transport, parts.client.transport):
            one.close()
        return {name: statistics.median(samples) for name, samples in times.items()}


class Stalls:
    """A worker whose every step waits for the exchange of one fragment of its x."""

    def __init__(self, host: Any, center: str, address: tuple[str, int], secret: bytes, n: int, fragments: int) -> None:
        import ray

        from easgd.center.client import JoinRequest
        from easgd.center.layout import Layout, fragment_bounds
        from easgd.engines.ray.client import RayCenterClient
        from easgd.engines.ray.sockets import SocketLink
        from easgd.engines.ray.transport import Transport
        from easgd.methods import EASGD

        method = EASGD(period=fragments, moving_rate=0.1, fragments=fragments)
        ray.get(host.open.remote(center, method, None, {"x": torch.rand(n).numpy()}))
        self.x, self.bounds = torch.rand(n), fragment_bounds(n, fragments)
        wire = Transport(center, 0, 0, [(0, n)], lambda k: SocketLink(address, secret))
        request = JoinRequest(method, self.x, Layout(("x",), ((n,),), ((1,),), ("torch.float32",)), 0)
        self.client = RayCenterClient(None, [], wire, request)  # type: ignore[arg-type]

    def longest(self) -> float:
        """Exchange all fragments in turn; return the seconds of the step that waited longest."""
        stalls = []
        for fragment, (a, b) in enumerate(self.bounds):
            start, part = time.perf_counter(), self.x[a:b]
            answer = self.client.exchange(part.clone(), 0.1, fragment)
            assert answer is not None
            part -= answer
            stalls.append(time.perf_counter() - start)
        return max(stalls)


def group(path: str, rank: int) -> None:
    """Join a gloo process group of two on this machine, which meets at the file `path`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)


def _fill(sock: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += sock.recv_into(view[at:], 0, socket.MSG_WAITALL)


def rows(megabytes: tuple[int, ...] = MEGABYTES, fragments: int = FRAGMENTS) -> list[Row]:
    from easgd.engines.ray.cluster import connect

    nodes = TwoNodes(store=2_500_000_000)
    try:
        cluster = connect(nodes.address, nodes.token)
        try:
            return [row for ip in (HEAD, SECOND) for size in megabytes for row in _rows(ip, size, fragments)]
        finally:
            cluster.close()
    finally:
        nodes.close()


def _rows(ip: str, megabytes: int, fragments: int) -> list[Row]:
    import ray

    from easgd.engines.ray.shard_actor import ShardActor

    def on(node: str) -> dict[str, Any]:
        return {"num_cpus": 0, "resources": {f"node:{node}": 0.001}}

    end = time.monotonic() + 60
    while not any(n["Alive"] and n["NodeManagerAddress"] == ip for n in ray.nodes()) and time.monotonic() < end:
        time.sleep(0.1)
    host = ray.remote(ShardActor).options(**on(ip), max_concurrency=8).remote()
    echo = ray.remote(EchoActor).options(**on(ip), max_concurrency=4).remote()
    meter = ray.remote(Meter).options(**on(HEAD)).remote()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gloo")
        call = meter.measure.remote(host, echo, ip, os.urandom(32), megabytes, path, fragments)
        seconds = ray.get(call, timeout=600)
    for actor in (host, echo, meter):
        ray.kill(actor)
    where, moved = "one node" if ip == HEAD else "two nodes", 2e-3 * megabytes
    limit = seconds["tcp"]
    out = [
        Row(f"{megabytes} MB, {where}, {name}", moved / seconds[name], "GB/s", moved / limit, limit / seconds[name])
        for name in ("sockets", "Ray's calls", "gloo")
    ]
    whole, part = 1e3 * seconds["stall"], 1e3 * seconds["stall in parts"]
    case = f"{megabytes} MB, {where}, longest stall of a step, {fragments} fragments"
    out.append(Row(case, part, "ms", whole, part / whole))
    if megabytes == 4:
        mine = seconds["sockets"]
        out.append(Row(f"{megabytes} MB, {where}, sockets, one exchange", 1e3 * mine, "ms", 1e3 * limit, mine / limit))
    return out
