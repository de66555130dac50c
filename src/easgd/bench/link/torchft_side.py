"""torchft's DiLoCo in the race, where torchft is installed: a replica on each machine, a lighthouse on machine 0."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from easgd.bench.link.cases import TORCHFT_PERIOD, Case
from easgd.bench.link.jobs import Job
from easgd.bench.link.network import ADDRESSES
from easgd.bench.link.sides import Synchronous

LIGHTHOUSE_PORT = 29501
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
PATIENCE = timedelta(minutes=10)
"""A round of a large model takes half a minute at 10 Mbit/s; torchft's own limits are shorter."""


class TorchftDiLoCo(Synchronous):
    """The whole model is one fragment, as in the paper of DiLoCo: every so many steps all wait for the average."""

    def __init__(self, contestant: Case, job: Job) -> None:
        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo

        super().__init__(contestant, job)
        here = ADDRESSES[self.rank]
        if self.rank == 0:
            self._lighthouse = LighthouseServer(
                bind=f"{here}:{LIGHTHOUSE_PORT}", min_replicas=2, join_timeout_ms=60_000, heartbeat_timeout_ms=60_000
            )
        distributed.barrier()  # the other one must not look for a lighthouse that is not there yet
        # Kept: the store serves only as long as the object lives.
        self._store: Any = distributed.TCPStore(  # type: ignore[attr-defined]
            here, 0, is_master=True, wait_for_workers=False
        )
        # All start from one point, so nobody needs another one's state at the beginning (`init_sync`).
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=PATIENCE), load_state_dict=self.plain.load_state_dict,
            state_dict=self.plain.state_dict, min_replica_size=2, use_async_quorum=False, init_sync=False,
            timeout=PATIENCE, quorum_timeout=PATIENCE, connect_timeout=PATIENCE, rank=0, world_size=1,
            store_addr=here, store_port=self._store.port, lighthouse_addr=f"http://{ADDRESSES[0]}:{LIGHTHOUSE_PORT}",
            replica_id=f"replica-{self.rank}", hostname=here,
        )  # fmt: skip
        outer = torch.optim.SGD(self.plain.parameters(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)
        self._training = DiLoCo(
            self._manager, [self.plain], self.optimizer, outer, sync_every=TORCHFT_PERIOD, pin_memory=False
        )
        self._training.__enter__()
