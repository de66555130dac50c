import pytest

pytest.importorskip("ray")

from easgd.engines.ray.sockets import SocketServer
from shards_by_hand import N, make


@pytest.fixture
def served():
    """A shard behind a real socket, and its address."""
    shard = make()
    server = SocketServer("127.0.0.1", b"s" * 32, shard.exchange, lambda center: 4 * N)
    yield shard, server.address
    server.listener.close()
