"""The actor in which one worker trains: the user's script or function runs on its main thread.

A background thread sends heartbeats to the run's coordinator. They carry what the worker prints, and its records where
the launcher's folder is not on this machine; the answer says whether to stop.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from easgd.groups.store import LOOPBACK, bound, rank_environment, serve
from easgd.kernels.allocator import keep_freed_memory
from easgd.launch.scratch import make_scratch, remove_scratch
from easgd.launch.target import TerminatedError, exit_code, obey_signals, run_module, run_script
from easgd.launch.terminal import open_terminal
from easgd.worker.context import TORCHRUN
from easgd.worker.seeding import start_alike

HEARTBEAT_SECONDS = 0.15
Chunks = list[tuple[str, bytes]]


class OutputSender:
    """Sends output and records to the coordinator."""

    def __init__(self, coordinator: Any, rank: int, incarnation: int, records: Path | None, label: str) -> None:
        self.coordinator, self.rank, self.incarnation, self.records = coordinator, rank, incarnation, records
        self.label, self.process = label, f"{os.getpid()} on {socket.gethostname()}"
        self._output: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self._read: dict[Path, int] = {}
        self._ended = threading.Event()
        self._interrupted = False
        self._readers = [self._take_over(1, "out"), self._take_over(2, "err")]
        self._thread = threading.Thread(target=self._work, name="easgd-heartbeat", daemon=True)
        self._thread.start()

    def _take_over(self, descriptor: int, name: str) -> threading.Thread:
        """Redirect stdout or stderr of the whole process, also of C code in it, to this object."""
        source, target = os.pipe()
        os.dup2(target, descriptor)
        os.close(target)

        def read() -> None:
            while data := os.read(source, 1 << 16):
                self._output.put((f"{name}-{self.label}", data))

        thread = threading.Thread(target=read, name=f"easgd-{name}", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._heartbeat()

    def _heartbeat(self, last: bool = False) -> None:
        chunks: Chunks = []
        with contextlib.suppress(queue.Empty):
            while len(chunks) < 64:
                chunks.append(self._output.get_nowait())
        chunks += self._new_records()
        try:
            me = (self.rank, self.incarnation, chunks, self.process, last)
            stop = ray.get(self.coordinator.heartbeat.remote(*me), timeout=30.0)
        except RayError:
            for chunk in chunks:  # the coordinator is being restarted: send it again the next time
                self._output.put(chunk)
            return
        if stop and not self._interrupted:
            self._interrupted = True
            os.kill(os.getpid(), signal.SIGINT)

    def _new_records(self) -> Chunks:
        """Return whole lines that were added to this worker's files since the last call."""
        out: Chunks = []
        if self.records is None:
            return out
        for path in sorted(self.records.rglob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            if data:
                self._read[path] = self._read.get(path, 0) + len(data)
                out.append((path.relative_to(self.records).as_posix(), data))
        return out

    def close(self) -> None:
        """Send what is still in the buffer, and end the thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(0.05)  # what was written last is on its way through the pipe
        self._interrupted = True
        self._ended.set()
        self._thread.join(60.0)
        while True:
            self._heartbeat(last=True)
            if self._output.empty():
                return


def _set_apart() -> None:
    """Import what every worker imports, and keep it apart from what the script will make.

    `seeding` looks through all objects for the script's generators: half a second of every `attach`, if it meets torch.
    """
    import torch._dynamo  # noqa: F401 (the first optimizer of a process imports it)

    import easgd.worker.worker  # noqa: F401

    gc.collect()
    gc.freeze()


class WorkerActor:
    """The actor. `plan` is what the launcher decided for all workers (`placement.plan_of`), `member` its rank in it."""

    def __init__(self, coordinator: Any, plan: dict[str, Any], rank: int, incarnation: int, member: int = 0) -> None:
        self.coordinator, self.plan, self.rank, self.incarnation = coordinator, plan, rank, incarnation
        self.member = member
        sys.path[:0] = [path for path in plan["path"] if path not in sys.path]
        with contextlib.suppress(OSError):
            os.chdir(plan["cwd"])
        out = Path(plan["out"])
        self.scratch: Path | None = None
        # The launcher's own folder, if it is on this machine: a mark in it tells it from another of the same name.
        if os.environ.get("EASGD_RAY_SCRATCH") or not (out / f".{plan['run']}").exists():
            self.scratch = out = make_scratch(f"easgd-{plan['run']}-{rank}-")
        self.out = out
        os.environ.update({name: str(value) for name, value in self._environment().items()})
        for name in (*TORCHRUN, *(("EASGD_SCHEDULE",) if plan["schedule"] is None else ())):
            os.environ.pop(name, None)
        _set_apart()

    def _environment(self) -> dict[str, object]:
        plan = self.plan
        own: dict[str, object] = {
            **plan["environment"],
            "EASGD_RUN": f"ray:{plan['run']}",
            "EASGD_RANK": self.rank,
            "EASGD_WORKERS": max(plan["workers"], self.rank + 1),
            "EASGD_INCARNATION": self.incarnation,
            "EASGD_OUT": self.out,
            # Clocks of different machines agree in the time of day, at best; the monotonic ones do not at all.
            "EASGD_ORIGIN": time.monotonic() - (time.time() - plan["started"]),
            "EASGD_ELAPSED": plan["elapsed"],
            "EASGD_NODE": f"{socket.gethostname()}/{ray.util.get_node_ip_address()}",
        }
        for name in ("schedule", "compression", "history", "machine_period"):
            if plan[name] is not None:
                own[f"EASGD_{name.upper()}"] = plan[name]
        return own

    def open_group(self) -> tuple[str, int, str | None]:
        """As the first rank of a group, serve its store; return node and port, and the accelerators of this node."""
        with bound() as server:
            port: int = server.getsockname()[1]
            serve(os.dup(server.fileno()))
        return ray.get_runtime_context().get_node_id(), port, os.environ.get("CUDA_VISIBLE_DEVICES")

    def enter_group(self, port: int, devices: str | None) -> None:
        """Set what torchrun would; ranks of a group are on one node and share its accelerators."""
        plan = self.plan
        os.environ.update(rank_environment(self.rank, self.member, plan["nproc"], LOOPBACK, port, plan["run"]))
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices

    def run(self, kind: str, *target: Any) -> int:
        """Run the target to its end; return its exit code."""
        keep_freed_memory()
        label = f"{self.rank}.{self.member}" if self.plan["nproc"] > 1 else str(self.rank)
        relay = OutputSender(self.coordinator, self.rank, self.incarnation, self.scratch, label)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        try:
            return exit_code(partial(self._call, kind, target), __file__)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            relay.close()
            if self.scratch is not None and not list(self.scratch.glob("weights-*")):
                remove_scratch(self.scratch)

    def _call(self, kind: str, target: tuple[Any, ...]) -> None:
        obey_signals()
        # Ray starts its processes with SIGINT blocked: without this a request to stop is never heard.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        open_terminal(os.environ)
        start_alike(os.environ["EASGD_RUN"])
        try:
            if kind == "script":
                path, source, *args = target
                run_script(str(self._script(Path(path), source)), *args)
            elif kind == "module":
                run_module(*target)
            else:
                function, args = target
                function(*args)
        finally:
            # After a signal, `exit_code` lets them bring the center what they have done first.
            if not isinstance(sys.exception(), KeyboardInterrupt | TerminatedError):
                self._leave()

    def _script(self, path: Path, source: bytes) -> Path:
        """Return the script itself where this machine has it, else a copy."""
        with contextlib.suppress(OSError):
            if path.read_bytes() == source:
                return path
        folder = self.scratch or make_scratch("easgd-script-")
        copy = folder / path.name
        copy.write_bytes(source)
        return copy

    def _leave(self) -> None:
        """Close the workers: this process does not exit with the script, so what atexit would do is done here."""
        if "easgd.worker.open_workers" in sys.modules:
            from easgd.worker.open_workers import close_all

            close_all()
