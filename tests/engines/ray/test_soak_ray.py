"""Case 28 on a cluster: kills of workers, shards and the coordinator, stops, joiners, full disks; seeded, counted."""

from __future__ import annotations

import os
import signal

import pytest
import ray

from launching import until
from soaking import START, Soak, error_of, judge, undisturbed

SECONDS = float(os.environ.get("EASGD_SOAK_SECONDS", "120"))


class RaySoak(Soak):
    """Faults that only a cluster has."""

    def actor(self, name: str) -> object:
        return ray.get_actor(name, namespace=self.name)

    def pid_of(self, name: str) -> int:
        """Wait until an actor answers; return its process id."""

        def answer() -> int | None:
            try:
                return ray.get(self.actor(name).pid.remote(), timeout=10)
            except (ray.exceptions.RayError, ValueError):  # it is being started again
                return None

        return until(answer, f"the {name} answers", START)

    def kill_shard(self) -> None:
        """Kill the shard, and wait until workers have exchanged with it again."""
        before = len(self.said("shard 0 was restarted"))
        os.kill(self.pid_of("shard-0"), signal.SIGKILL)
        until(lambda: len(self.said("shard 0 was restarted")) > before, "the shard is restored", START)
        version = self.version()
        until(lambda: self.version() > version, "workers exchange again", START)

    def version(self) -> int:
        try:
            return max(ray.get(self.actor("shard-0").versions.remote(), timeout=10).values(), default=0)
        except ray.exceptions.RayError:
            return 0

    def kill_coordinator(self) -> None:
        """Kill the coordinator, and half of the time a worker with it."""
        os.kill(self.pid_of("coordinator"), signal.SIGKILL)
        if self.dice.random() < 0.5:
            self.kill()
        self.pid_of("coordinator")

    def watched(self) -> dict[str, int]:
        return {"launcher": self.process.pid} | {name: self.pid_of(name) for name in ("shard-0", "coordinator")}


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_faults(cluster, tmp_path):
    options = ("--ray", cluster.address, "--interval", "1")
    calm = undisturbed(tmp_path / "calm", 40, *options)
    soak = RaySoak(tmp_path / "soak", *options)
    faults = {
        "killed workers": (24, soak.kill),
        "terminated workers": (2, soak.terminate),
        "two killed at once": (4, soak.kill_two),
        "stops": (2, soak.stop),
        "killed shards": (5, soak.kill_shard),
        "killed coordinators": (3, soak.kill_coordinator),
        "launchers that joined": (1, soak.join),
        "full disks": (1, soak.full_disk),
    }
    try:
        soak.work(SECONDS, faults, soak.watched)
        center = soak.finish()
        judge(soak.rows("ray", SECONDS, error_of(center), calm))
    finally:
        soak.close()
