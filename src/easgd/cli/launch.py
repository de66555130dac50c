"""`easgd launch`: train a script on processes of this machine or a cluster, or join a training that is under way."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from easgd.cli.parsing import Command
from easgd.engines.local.launch import Launcher
from easgd.engines.local.process import describe_exit
from easgd.errors import SettingError, refuse
from easgd.launch.checks import check_workers
from easgd.launch.event_log import time_split
from easgd.launch.output import say
from easgd.launch.result import final_center, save_center
from easgd.launch.run_directory import JoinedRun, OwnedRun, clean_stale, live_runs, new_id
from easgd.settings import Count, Natural, NonNegative, option
from easgd.worker.context import SCHEDULES

RAY = "on a Ray cluster"


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `easgd launch`; everything from the script's name on belongs to the script."""

    workers: Count | None = option("processes to start (4; with --join 1)", flags=("-n", "--workers"), metavar="N")
    restarts: Natural = option("start each worker again up to N times after a death", 0)
    schedule: str | None = option("who acts when, unless the script's method says it", choices=lambda: SCHEDULES)
    out: str | None = option("folder for logs, records and the center (runs/<run id>)", metavar="DIR")
    grace: NonNegative = option("time between the first Ctrl-C and SIGKILL", 10.0, metavar="SECONDS")
    join: str | None = option(
        "add a worker to a running training: its id, or the path of its run directory", metavar="RUN"
    )
    show: bool = option("show the trainings that are running", False, flags=("--list",))
    module: tuple[str, ...] | None = option(
        "run a module instead of a script", flags=("-m",), metavar="MODULE", nargs="...", kind="the name of a module"
    )
    ray: str | None = option(
        'train on a Ray cluster: the host:port of its head, "auto" for the one that this machine is part of (or, if '
        'there is none, one of its own), "local" for one of its own, on this machine alone',
        group=RAY, metavar="ADDRESS",
    )  # fmt: skip
    compression: str | None = option("what crosses the network: bf16 or int8 (float32)", group=RAY, metavar="NAME")
    shards: int | None = option("processes that share the center (one per machine, 8 at most)", group=RAY)
    interval: float = option("between two checkpoints of the center", 30.0, group=RAY, metavar="SECONDS")
    gpus: float = option("accelerators for each worker", 0.0, group=RAY, metavar="N")
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
    if not options.target:
        raise SettingError("no script given: `easgd launch -n 4 train.py`, or `easgd launch -m package.train`")
    kind, name = options.target[:2]
    if kind == "script" and not Path(name).is_file():
        raise SettingError(f"script {name!r} does not exist; give the path of a Python file, or -m and a module")
    if options.join is not None and (options.schedule or options.out):
        raise SettingError("--join takes the schedule and the folder of the run it joins; leave out --schedule, --out")


def check_local(options: LaunchOptions) -> None:
    """Refuse what only a cluster, or no single machine, can do."""
    if options.workers is not None:
        check_workers("-n", options.workers, "-n 4")
    for name in ("compression", "shards", "interval", "gpus"):
        value = getattr(options, name)
        if value != getattr(LaunchOptions, name):
            raise refuse(f"--{name}", value, "it is for a cluster", "add --ray ADDRESS, or leave it out")


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


def launch(options: LaunchOptions) -> int:
    """Start or join the run, stay until it ends, print what it cost."""
    clean_stale()
    if options.ray is not None or (options.join is not None and on_cluster(options.join)):
        from easgd.cli import cluster

        return cluster.launch(options)
    check_local(options)
    run: OwnedRun | JoinedRun
    if options.join is not None:
        run = JoinedRun(options.join)
        workers = options.workers or 1
    else:
        workers = 4 if options.workers is None else options.workers
        name = Path(options.target[1]).stem if options.target[0] == "script" else options.target[1].rpartition(".")[2]
        id_ = new_id(name)
        out = Path("runs", id_) if options.out is None else Path(options.out)
        run = OwnedRun(id_, workers, out, shlex.join(options.target[1:]), options.schedule)
        say(f"run {id_}: {workers} workers, logs and records in {out}")
    try:
        launcher = Launcher(run, options.target, workers, restarts=options.restarts, grace=options.grace)
        code = launcher.run()
        if isinstance(run, OwnedRun):
            report(run, launcher)
    finally:
        run.close()
    return code


def on_cluster(reference: str) -> bool:
    """Whether a live run of this machine trains on Ray."""
    description = live_runs().get(Path(reference).name)
    return description is not None and description.ray is not None


def report(run: OwnedRun, launcher: Launcher) -> None:
    """Save the center, print the time split, and the exit codes if one is not 0."""
    center = final_center(run.path)
    if center is not None and (saved := save_center(center, run.out)):
        say(f"the center is saved in {saved}")
    print_time_split(run.out)
    if any(launcher.exit_codes.values()):
        ends = ", ".join(f"{rank}: {describe_exit(code)}" for rank, code in sorted(launcher.exit_codes.items()))
        say(f"workers ended with {ends}")


def main(argv: list[str]) -> int:
    """Parse, check, launch."""
    options = COMMAND.parse(argv)
    if options.show:
        print_runs()
        return 0
    check(options)
    return launch(options)
