"""Quick starts: one process imports torch once, and every worker of the run is forked from it.

Importing torch and the exchange's loops costs seconds of processor time. A worker that is forked has them already, so p
workers pay once, and one that is restarted is back at its script's first line in a fraction of a second.

    launcher ── request ──> template ── fork ──> (ends at once) ── fork ──> worker

The process between makes the worker an orphan, which Linux hands to the launcher: the launcher waits for it as for any
child, and the template may die without taking a worker along. The template does nothing but import: it has no threads
of its own and touches no accelerator, so a fork of it is a fresh interpreter in all that a script can see. What differs
by process is made anew: environment, session, output, random numbers, the name that `ps` shows. It outlives its
run for a while: the next run of the same launcher starts from it (`kept_template`).
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import resource
import shlex
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from easgd.engines.local import child
from easgd.groups.store import LISTEN
from easgd.launch.process import sigint_blocked
from easgd.machine import follow_thread_setting

_ROOM = 4096  # bytes of the command line that a worker's own name may take
_LOOK_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36
NO_LIFELINE = "-1"  # Linux ends a worker with its parent


class Template:
    """The launcher's end: asks for workers.

    Args:
        environment: what workers have in common; libraries read it when they are imported.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.made_for = surroundings(environment)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "easgd.engines.local.template", str(theirs.fileno()), str(os.getpid())]
        with theirs, sigint_blocked():
            self._process = subprocess.Popen(
                [*command, "-" * _ROOM], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(
        self, target: Sequence[str], environment: dict[str, str], stdout: int, stderr: int, *,
        inherit: Sequence[int] = (), store: int | None = None,
    ) -> int:  # fmt: skip
        """Fork a worker; return its process id. It is a child of this process. OSError if the template has died.

        `inherit` is the file of a function (`function.pack`), `store` the socket of a group's store, for the rank that
        serves it.
        """
        request = json.dumps(
            {"target": list(target), "environment": environment, "cwd": os.getcwd(), "serves": store is not None}
        )
        stores = [] if store is None else [store]
        payload = os.memfd_create("easgd-request")  # an environment may be larger than a socket's packet
        try:
            os.write(payload, request.encode(errors="surrogateescape"))
            descriptors = array.array("i", [payload, stdout, stderr, *inherit, *stores])
            _adopt_orphans(True)
            self._socket.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            answer = self._socket.recv(32)
        finally:
            _adopt_orphans(False)
            os.close(payload)
        if not answer:
            raise ChildProcessError("the template has ended")
        return int(answer)

    def close(self) -> None:
        """End it; its workers have ended, or go on without it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def surroundings(environment: dict[str, str]) -> tuple[Any, ...]:
    """What a process takes over from its parent, and a worker that is forked later cannot change."""
    # Names of our own are read by the worker, not at an import.
    common = {name: value for name, value in environment.items() if not name.startswith("EASGD_")}
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    return common, os.getcwd(), os.sched_getaffinity(0), os.nice(0), limits, sys.executable


def _adopt_orphans(yes: bool) -> None:
    """Become the parent of descendants that lose theirs, or stop becoming it: others' orphans are not ours to keep."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


# the template's own side ---------------------------------------------------------------------------------------


def _preload() -> None:
    """Import what every worker imports."""
    import torch._dynamo  # noqa: F401 (the first optimizer of a process imports it)

    import easgd.engines.local.client
    import easgd.worker.worker  # noqa: F401
    from easgd.center.fused_rules import warm
    from easgd.methods import EASGD

    warm(EASGD())
    gc.collect()
    gc.freeze()  # so that a worker's collector does not touch, and thereby copy, the pages that all share


def _serve(link: socket.socket, parent: int) -> dict[str, Any] | None:
    """Fork a worker per request. Returns in the worker, with its request; None in the template, at its end.

    It ends with its launcher: the socket closes. A process that the launcher has forked may hold it open, so look
    for the launcher now and then. Linux could kill the template instead (`child.follow_parent`), but does so when the
    *thread* that started it ends, and the next run, of another thread, wants it too.
    """
    link.settimeout(_LOOK_SECONDS)
    while True:
        try:
            message, ancillary, *_ = link.recvmsg(1, socket.CMSG_SPACE(5 * array.array("i").itemsize))
        except TimeoutError:
            if os.getppid() != parent:
                return None
            continue
        if not message:
            return None
        payload, stdout, stderr, *rest = array.array("i", ancillary[0][2])
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            return _become_worker(link, between, payload, stdout, stderr, rest)
        os.waitpid(between, 0)
        for descriptor in (payload, stdout, stderr, *rest):
            os.close(descriptor)


def _become_worker(
    link: socket.socket, between: int, payload: int, stdout: int, stderr: int, rest: list[int]
) -> dict[str, Any]:
    """Make what differs by process; return the request."""
    while os.getppid() == between:  # until Linux has handed us to the launcher, which then may wait for us
        time.sleep(0.001)
    os.setsid()  # the terminal's Ctrl-C reaches the launcher only, which then decides
    link.send(str(os.getpid()).encode())
    link.close()
    for descriptor, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    with open(payload, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = json.loads(file.read().decode(errors="surrogateescape"))
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["serves"]:
        os.environ[LISTEN] = str(rest.pop())
    if request["target"][0] == "function":  # its file has another number here
        request["target"][1] = str(rest.pop())
    os.chdir(request["cwd"])
    _renew()
    _rename(request["target"])
    return request


def _renew() -> None:
    """Draw the run's random state, and read again what libraries read at their import."""
    from easgd.worker.seeding import start_alike

    start_alike(os.environ.get("EASGD_RUN"))
    follow_thread_setting(forked=True)


def _rename(target: Sequence[str]) -> None:
    """Let `ps` show what this process runs, where the kernel keeps the command line."""
    kind, *rest = target
    words = [sys.executable, *({"module": ["-m"], "function": ["easgd.run"]}.get(kind, [])), *rest]
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
    shown = shlex.join(words).encode(errors="replace")[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def main(link: str, parent: str) -> int:
    """Serve until the launcher ends; in a forked worker, run it and return its exit code."""
    _preload()
    with warnings.catch_warnings():  # a worker has the filters that Python and the libraries have set, and no other
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        request = _serve(socket.socket(fileno=int(link)), int(parent))
    if request is None:
        return 0
    return child.main(parent, NO_LIFELINE, *request["target"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
