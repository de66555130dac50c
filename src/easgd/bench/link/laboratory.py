"""Two machines with a link between them and, when they are asked for, a Ray node on each."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

from easgd.bench.link.network import Network
from easgd.bench.nodes import TwoNodes

STORE_BYTES = 300_000_000


class Laboratory(Network):
    """A network whose machines are Ray nodes of one processor each; a token keeps others out.

        with Laboratory() as lab:
            training = lab.easgd("launch", "--ray", lab.nodes.address, "-n", "2", "train.py")
            lab.shape(100)
            lab.cut()
            lab.mend()

    Ray keeps its own patience with a silent node, more than half a minute: a cut of 20 s costs no node.
    """

    @functools.cached_property
    def nodes(self) -> TwoNodes:
        """The Ray nodes, started at the first use."""
        return TwoNodes(STORE_BYTES, place=self, cpus=1, patient=True)

    def easgd(self, *arguments: str, machine: int = 0, **options: Any) -> subprocess.Popen[Any]:
        """Start `easgd` with these arguments on a machine."""
        return self.python("-m", "easgd", *arguments, machine=machine, **options)

    def python(self, *arguments: str, machine: int = 0, **options: Any) -> subprocess.Popen[Any]:
        """Start Python with these arguments on a machine, with Ray's token if the nodes run.

        `environment` is added to the environment; the other options are those of `subprocess.Popen`.
        """
        own = self.nodes.environment if "nodes" in self.__dict__ else os.environ
        environment = {**own, **options.pop("environment", {})}
        return self.start(machine, [sys.executable, *arguments], env=environment, **options)
