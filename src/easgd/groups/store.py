"""The store at which the ranks of a group meet, as torchrun's variables name it.

Whoever starts the ranks binds the socket, and the first rank serves it: no port is chosen that another process could
take in between, and the store ends with its group.
"""

from __future__ import annotations

import os
import socket
from typing import Any

LISTEN = "EASGD_STORE_FD"
LOOPBACK = "127.0.0.1"
_SERVED: list[Any] = []  # a store ends with its object


def bound(host: str = LOOPBACK) -> socket.socket:
    """Return a socket that listens on a free port."""
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    server.bind((host, 0))
    server.listen(128)
    return server


def serve(descriptor: int) -> None:
    """Serve the store on an inherited socket, for as long as this process lives."""
    import torch.distributed as dist

    with socket.socket(fileno=os.dup(descriptor)) as server:
        host, port = server.getsockname()[:2]
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor
    )
    _SERVED.append(store)


def rank_environment(rank: int, member: int, nproc: int, host: str, port: int, run: str) -> dict[str, str]:
    """Return what torchrun would tell one rank of a group, and what `easgd.attach` reads."""
    own = {"EASGD_NPROC": nproc, "EASGD_MEMBER": member, "RANK": member, "LOCAL_RANK": member, "ROLE_RANK": member}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), nproc)
    meeting = {"MASTER_ADDR": host, "MASTER_PORT": port, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    # With its own store running, torch must not start another one on the same port.
    elastic = {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RUN_ID": f"{run}-{rank}"}
    restarts = {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    # Ranks of one machine need no other interface, and nobody else should reach theirs.
    loopback = {} if "GLOO_SOCKET_IFNAME" in os.environ or not host.startswith("127.") else {"GLOO_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in {**own, **sizes, **meeting, **elastic, **restarts, **loopback}.items()}
