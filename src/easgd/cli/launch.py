"""`easgd launch`: train a script on processes of this machine or a cluster, or join a training that is under way."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easgd.center.guard import check_factor
from easgd.cli.parsing import Command
from easgd.engines.run import engine_named
from easgd.errors import SettingError, refuse
from easgd.launch.backend import RunRequest
from easgd.launch.checks import check_gpus
from easgd.launch.event_log import loss_summary, network_summary, time_split
from easgd.launch.launcher import Launcher
from easgd.launch.output import say
from easgd.launch.process import describe_exit
from easgd.launch.result import save_centers
from easgd.launch.run_directory import clean_stale, live_runs, new_id
from easgd.settings import Count, Natural, NonNegative, option
from easgd.worker.context import SCHEDULES

RAY = "on a Ray cluster"


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `easgd launch`; everything from the script's name on belongs to the script."""

    workers: Count | None = option("processes to start (4; with --join 1)", flags=("-n", "--workers"), metavar="N")
    nproc: Count = option(
        "processes of each worker: a group that finds torchrun's variables, for DDP or FSDP2 inside it",
        1, flags=("--nproc-per-worker",), metavar="K",
    )  # fmt: skip
    restarts: Natural = option("start each worker again up to N times after a death", 0)
    schedule: str | None = option("who acts when, unless the script's method says it", choices=lambda: SCHEDULES)
    out: str | None = option("folder for logs, records and the center (runs/<run id>)", metavar="DIR")
    guard: float | None = option(
        "refuse messages this many times farther from the center than usual; 0: none (30)", metavar="FACTOR"
    )
    history: bool = option("write every exchange down in --out, for `easgd doctor --history`", False)
    grace: NonNegative = option("time between the first Ctrl-C and SIGKILL", 10.0, metavar="SECONDS")
    join: str | None = option(
        "add a worker to a running training: its id, or the path of its run directory", metavar="RUN"
    )
    show: bool = option("show the trainings that are running", False, flags=("--list",))
    module: tuple[str, ...] | None = option(
        "run a module instead of a script", flags=("-m",), metavar="MODULE", nargs="...", kind="the name of a module"
    )
    gpus: float | None = option(
        "accelerators that each worker sees, 0.5 for half of one (default: all, divided; on a cluster 0)",
        flags=("--gpus-per-worker", "--gpus"), metavar="N",
    )  # fmt: skip
    ray: str | None = option(
        'train on a Ray cluster: the host:port of its head, "auto" for the one that this machine is part of (or, if '
        'there is none, one of its own), "local" for one of its own, on this machine alone',
        group=RAY, metavar="ADDRESS",
    )  # fmt: skip
    compression: str | None = option(
        "what crosses the network: bf16, int8, int4, int2 or topk (float32)", group=RAY, metavar="NAME"
    )
    shards: int | None = option("processes that share the center (one per machine, 8 at most)", group=RAY)
    machine_period: Count | None = option(
        "a center in every machine's memory, tied to the run's when each of its workers has exchanged T times: what "
        "crosses the network does not grow with the workers of a machine", group=RAY, metavar="T",
    )  # fmt: skip
    interval: float = option("between two checkpoints of the center", 30.0, group=RAY, metavar="SECONDS")
    script: tuple[str, ...] = option(
        "the script and its arguments", (), positional=True, nargs="...", metavar="script.py …"
    )

    @property
    def target(self) -> list[str]:
        """What a child runs: ["script", path, …] or ["module", name, …]; empty if nothing was given."""
        return ["module", *self.module] if self.module else ["script", *self.script] if self.script else []


COMMAND = Command(
    "launch", LaunchOptions,
    "Train a script that calls easgd.attach on N processes of this machine, with the center in shared memory, or,\n"
    "with --ray, on a cluster. Or add workers to such a run (--join).",
    [
        "launch -n 4 --restarts 1 train.py --epochs 10",
        "launch -m package.train --epochs 10",
        "launch -n 2 --nproc-per-worker 4 train_ddp.py --epochs 10",
        "launch -n 2 train.py --out-dir out-{rank}    ({rank}: each worker's own)",
        "launch --join train-4711-a3f0 train.py --epochs 10",
        "launch --ray 10.0.0.1:6379 -n 64 --compression int8 train.py --epochs 10",
    ],
    "Ctrl-C once stops the workers cleanly; twice kills them. Exit code: 0 if every worker ended with 0.",
    usage="[options] (script.py | -m MODULE) [its arguments …]",
)  # fmt: skip


def check(options: LaunchOptions) -> None:
    """Refuse what cannot be launched, before anything is started."""
    if options.module == ():
        raise SettingError("-m needs the name of a module; write `easgd launch -m package.train`")
    check_gpus(options.gpus)
    check_factor(options.guard)
    if not options.target:
        raise SettingError("no script given: `easgd launch -n 4 train.py`, or `easgd launch -m package.train`")
    kind, name = options.target[:2]
    if kind == "script" and not Path(name).is_file():
        raise SettingError(f"script {name!r} does not exist; give the path of a Python file, or -m and a module")
    if options.join is not None and (options.schedule or options.out):
        raise SettingError("--join takes the schedule and the folder of the run it joins; leave out --schedule, --out")
    if options.machine_period is not None and options.nproc != 1:
        raise SettingError("--machine-period ties single processes; leave out --nproc-per-worker, or --machine-period")
    if options.machine_period is not None and options.schedule in ("sync", "round-robin"):
        why = "machines exchange as they come"
        raise refuse("--machine-period with --schedule", options.schedule, why, "leave out one of them")
    if options.join is not None and options.nproc != 1:
        raise SettingError("--join starts workers like those of the run it joins; leave out --nproc-per-worker")


def print_runs() -> None:
    """Print the live runs, one line each."""
    runs = live_runs()
    if not runs:
        print("no run is alive on this machine")
    for name, it in runs.items():
        started = time.strftime("%H:%M:%S", time.localtime(it.started))
        print(f"{name}  {it.workers} workers  since {started}  pid {it.pid}  out {it.out}  {it.command}")


def print_time_split(out: Path) -> None:
    """Print each worker's time in seconds, in the form of the paper's table."""
    rows = time_split(out)
    if not rows:
        return
    print(f"{'worker':>6} {'steps':>8}  compute/data/communication [s]  (of which waiting)")
    for worker, split in rows:
        print(f"{worker:>6} {split.steps:>8}  {split!s:<30}  {split.waiting:.4g}")


def engine_options(options: LaunchOptions) -> dict[str, Any]:
    """Return what was set of the engine's own options."""
    names = ("compression", "shards", "machine_period", "interval", "gpus")
    found = {name: getattr(options, name) for name in names if getattr(options, name) != getattr(LaunchOptions, name)}
    return found if options.ray is None else {**found, "address": options.ray}


def launch(options: LaunchOptions) -> int:
    """Start or join the run, stay until it ends, print what it cost."""
    clean_stale()
    if options.guard is not None:
        os.environ["EASGD_GUARD"] = str(options.guard)  # the workers of every engine get the EASGD_* variables
    engine = engine_named("ray" if options.ray is not None or on_cluster(options.join) else "local")
    name = Path(options.target[1]).stem if options.target[0] == "script" else options.target[1].rpartition(".")[2]
    workers = options.workers or (4 if options.join is None else 1)
    id_ = new_id(name)
    out = Path("runs", id_) if options.out is None else Path(options.out)
    command = shlex.join(options.target[1:])
    request = RunRequest(
        options.target, workers, id_, out, command, options.schedule, options=engine_options(options),
        nproc=options.nproc, history=options.history,
    )  # fmt: skip
    if options.join is not None:
        with engine.join_run(options.join, request) as backend:
            return Launcher(backend, workers, restarts=options.restarts, grace=options.grace).run()
    with engine.start_run(request) as backend:
        where = f" on {backend.where}" if backend.where else ""
        each = f" of {options.nproc} processes" if options.nproc > 1 else ""
        say(f"run {id_}: {workers} workers{each}{where}, logs and records in {out}")
        launcher = Launcher(backend, workers, restarts=options.restarts, grace=options.grace)
        code = launcher.run()
        saved = report(launcher)
    return code or int(not saved)


def on_cluster(reference: str | None) -> bool:
    """Whether a live run of this machine trains on Ray."""
    description = live_runs().get(Path(reference).name) if reference is not None else None
    return description is not None and description.ray is not None


def report(launcher: Launcher) -> bool:
    """Save the centers; print the time split, the losses, the traffic, and the exit codes if one is not 0.

    Returns whether every center could be saved.
    """
    out = launcher.backend.out
    saved = save_centers(launcher.centers, out)
    for path in saved:
        say(f"the center is saved in {path}")
    print_time_split(out)
    for line in [*loss_summary(out), *network_summary(out)]:
        print(line)
    if any(launcher.exit_codes.values()):
        say("; ".join(f"worker {rank}: {describe_exit(code)}" for rank, code in sorted(launcher.exit_codes.items())))
    return len(saved) == len(launcher.centers)


def main(argv: list[str]) -> int:
    """Return the run's exit code: that of the first worker that died for good, 128 + n after a signal."""
    options = COMMAND.parse(argv)
    if options.show:
        print_runs()
        return 0
    check(options)
    return launch(options)
