"""One run in the laboratory: a spec in, both workers' results out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from easgd.bench.link.cases import ALONE, case
from easgd.bench.link.contestant import Spec
from easgd.bench.link.laboratory import Laboratory
from easgd.bench.link.network import DEVICE
from easgd.files import read_json

MODULE = "easgd.bench.link.contestant"
RENDEZVOUS = 29500
SETUP_SECONDS = 400.0
"""What set-up and measuring may take beside the training."""


def run(lab: Laboratory, spec: Spec, *, both: bool = False) -> dict[str, Any]:
    """Run a case and return its record; one that fails returns a record with `failed`.

    `both` runs a process that trains alone on each machine.
    """
    lab.shape(None)
    folder = lab.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "spec.json").write_bytes(msgspec.json.encode(spec))
    if case(spec.case).method is not None:
        assert lab.nodes  # Ray is started on the bare link
    lab.shape(spec.mbit)
    with open(folder / "log", "wb") as log:
        processes = _start(lab, spec, str(folder / "spec.json"), both, log)
        problem = _wait(processes, 3 * spec.limit + SETUP_SECONDS)
    record = {**msgspec.to_builtins(spec), "load": round(os.getloadavg()[0], 2), "date": time.strftime("%Y-%m-%d")}
    results = [read_json(folder / f"result-{machine}.json") for machine in (0, 1)]
    if problem or results[0] is None:
        lines = [problem or "no result", *(folder / "log").read_text(errors="replace").split("\n")[-30:]]
        return {**record, "failed": " | ".join(line for line in lines if line.strip())}
    other = results[1]
    kept = ("taken", "seconds", "times", "exchanging")
    return {**record, **results[0], "other": other and {name: other[name] for name in kept if name in other}}


def _start(lab: Laboratory, spec: Spec, path: str, both: bool, log: Any) -> list[subprocess.Popen[Any]]:
    out = {"stdout": log, "stderr": subprocess.STDOUT, "cwd": str(lab.folder)}
    contestant = case(spec.case)
    if contestant.method is not None:
        words = ["launch", "--ray", lab.nodes.address, "-n", "2", "--out", str(lab.folder / "run" / "out")]
        words += ["--shards", str(spec.shards)] if spec.shards else []
        words += ["--compression", contestant.compression] if contestant.compression else []
        return [lab.easgd(*words, "-m", MODULE, path, **out)]
    if contestant.name == ALONE:
        return [lab.python("-m", MODULE, path, machine=machine, **out) for machine in range(2 if both else 1)]
    group = {"MASTER_ADDR": lab.addresses[0], "MASTER_PORT": str(RENDEZVOUS), "WORLD_SIZE": "2"}
    group["GLOO_SOCKET_IFNAME"] = DEVICE
    return [
        lab.python("-m", MODULE, path, machine=rank, environment={**group, "RANK": str(rank)}, **out)
        for rank in (0, 1)
    ]  # fmt: skip


def _wait(processes: Sequence[subprocess.Popen[Any]], seconds: float) -> str:
    """Wait for all; end the rest when one fails or time is up. Return what went wrong, or nothing."""
    end, problem = time.monotonic() + seconds, ""
    while not problem and any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            problem = f"exit codes {[process.poll() for process in processes]}"
        elif time.monotonic() > end:
            problem = f"not done within {seconds:g} s"
        time.sleep(0.05)
    if any(process.poll() for process in processes):
        problem = f"exit codes {[process.poll() for process in processes]}"
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return problem
