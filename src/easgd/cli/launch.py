"""`easgd launch`: train a script on processes of this machine or a cluster, or join a training that is under way."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from easgd.engines.run import engine_named
from easgd.errors import SettingError, refuse, unknown
from easgd.launch.backend import RunRequest
from easgd.launch.checks import check_count, check_gpus, check_schedule
from easgd.launch.event_log import network_summary, time_split
from easgd.launch.launcher import Launcher
from easgd.launch.output import say
from easgd.launch.process import describe_exit
from easgd.launch.result import save_center
from easgd.launch.run_directory import clean_stale, live_runs, new_id

USAGE = """usage: easgd launch [-n N] [options] (script.py | -m module) [its arguments …]
       easgd launch --ray ADDRESS [-n N] [options] (script.py | -m module) [its arguments …]
       easgd launch --join RUN (script.py | -m module) [its arguments …]
       easgd launch --list

Train a script that calls easgd.attach on N processes of this machine, with the center in shared memory, or, with
--ray, on a cluster.

  -n, --workers N      processes to start (4; with --join 1)
  --restarts N         start each worker again up to N times after a death (0)
  --schedule NAME      async, sync or round-robin; default: what the script's method says
  --out DIR            folder for logs, records and the center (runs/<run id>)
  --grace SECONDS      time between the first Ctrl-C and SIGKILL (10)
  --join RUN           add a worker to a running training: its id, or the path of its run directory
  --list               show the trainings that are running
  -m MODULE            run a module instead of a script
  --gpus-per-worker N  accelerators that each worker sees, 0.5 for half of one (default: all, divided; --ray: 0)

  --ray ADDRESS        train on a Ray cluster: the host:port of its head, "auto" for the one that this machine is part
                       of (or, if there is none, one of its own), "local" for one of its own, on this machine alone
  --compression NAME   what crosses the network: bf16 or int8 (float32)
  --shards N           processes that share the center (one per machine, 8 at most)
  --interval SECONDS   between two checkpoints of the center (30)

Ctrl-C once stops the workers cleanly; twice kills them. Exit code: 0 if every worker ended with 0.
example: easgd launch -n 4 --restarts 1 train.py --epochs 10
         easgd launch --join train-4711-a3f0 train.py --epochs 10
         easgd launch --ray 10.0.0.1:6379 -n 64 --compression int8 train.py --epochs 10
"""


@dataclass
class Options:
    """The command line, parsed."""

    workers: int | None = None
    restarts: int = 0
    schedule: str | None = None
    out: str | None = None
    grace: float = 10.0
    join: str | None = None
    ray: str | None = None
    compression: str | None = None
    shards: int | None = None
    interval: float = 30.0
    gpus: float | None = None
    help: bool = False
    show: bool = False
    target: list[str] = field(default_factory=list)
    """What a child runs: ["script", path, …] or ["module", name, …]."""


# option -> (field, type); everything from the script's name on belongs to the script
_OPTIONS = {
    "-n": ("workers", int),
    "--workers": ("workers", int),
    "--restarts": ("restarts", int),
    "--schedule": ("schedule", str),
    "--out": ("out", str),
    "--grace": ("grace", float),
    "--join": ("join", str),
    "--ray": ("ray", str),
    "--compression": ("compression", str),
    "--shards": ("shards", int),
    "--interval": ("interval", float),
    "--gpus": ("gpus", float),
    "--gpus-per-worker": ("gpus", float),
}


def parse(argv: list[str]) -> Options:
    """Read the options up to the script or module, and the rest as its own arguments."""
    options, rest = Options(), list(argv)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            options.help = True
            return options
        if name == "--list":
            options.show = True
        elif name == "-m":
            options.target = ["module", *_module(rest)]
            return options
        elif name in _OPTIONS:
            if not equals:
                value = rest.pop(0) if rest else ""
            where, kind = _OPTIONS[name]
            setattr(options, where, _convert(name, value, kind))
        else:
            raise unknown("option", name, [*_OPTIONS, "--list", "-m", "--help"])
    if rest:
        options.target = ["script", *rest]
    return options


def _module(rest: list[str]) -> list[str]:
    if not rest:
        raise SettingError("-m needs the name of a module; write `easgd launch -m package.train`")
    return rest


def _convert(name: str, value: str, kind: type) -> object:
    try:
        if value:
            return kind(value)
    except ValueError:
        pass
    wanted = {int: "a whole number", float: "a number"}.get(kind, "a value")
    raise refuse(name, value or "nothing", f"it takes {wanted}", "`easgd launch --help` shows an example")


def check(options: Options) -> None:
    """Refuse what cannot be launched, before anything is started."""
    if options.workers is not None:
        check_count("-n", options.workers, 1, "-n 4")
    check_count("--restarts", options.restarts, 0, "--restarts 1")
    check_schedule(options.schedule)
    check_gpus(options.gpus)
    if not options.grace >= 0:
        raise refuse("--grace", options.grace, "it is a number of seconds ≥ 0", "write --grace 10")
    if not options.target:
        raise SettingError("no script given: `easgd launch -n 4 train.py`, or `easgd launch -m package.train`")
    kind, name = options.target[:2]
    if kind == "script" and not Path(name).is_file():
        raise SettingError(f"script {name!r} does not exist; give the path of a Python file, or -m and a module")
    if options.join is not None and (options.schedule or options.out):
        raise SettingError("--join takes the schedule and the folder of the run it joins; leave out --schedule, --out")


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


def engine_options(options: Options) -> dict[str, Any]:
    """Return what was set of the engine's own options."""
    names = ("compression", "shards", "interval", "gpus")
    found = {name: getattr(options, name) for name in names if getattr(options, name) != getattr(Options, name)}
    return found if options.ray is None else {**found, "address": options.ray}


def launch(options: Options) -> int:
    """Start or join the run, stay until it ends, print what it cost."""
    clean_stale()
    engine = engine_named("ray" if options.ray is not None or on_cluster(options.join) else "local")
    name = Path(options.target[1]).stem if options.target[0] == "script" else options.target[1].rpartition(".")[2]
    workers = options.workers or (4 if options.join is None else 1)
    id_ = new_id(name)
    out = Path("runs", id_) if options.out is None else Path(options.out)
    command = shlex.join(options.target[1:])
    request = RunRequest(options.target, workers, id_, out, command, options.schedule, options=engine_options(options))
    if options.join is not None:
        with engine.join_run(options.join, request) as backend:
            return Launcher(backend, workers, restarts=options.restarts, grace=options.grace).run()
    with engine.start_run(request) as backend:
        where = f" on {backend.where}" if backend.where else ""
        say(f"run {id_}: {workers} workers{where}, logs and records in {out}")
        launcher = Launcher(backend, workers, restarts=options.restarts, grace=options.grace)
        code = launcher.run()
        report(launcher)
    return code


def on_cluster(reference: str | None) -> bool:
    """Whether a live run of this machine trains on Ray."""
    description = live_runs().get(Path(reference).name) if reference is not None else None
    return description is not None and description.ray is not None


def report(launcher: Launcher) -> None:
    """Save the center; print the time split, what crossed the network, and the exit codes if one is not 0."""
    out = launcher.backend.out
    if launcher.center is not None and (saved := save_center(launcher.center, out)):
        say(f"the center is saved in {saved}")
    print_time_split(out)
    for line in network_summary(out):
        print(line)
    if any(launcher.exit_codes.values()):
        ends = ", ".join(f"{rank}: {describe_exit(code)}" for rank, code in sorted(launcher.exit_codes.items()))
        say(f"workers ended with {ends}")


def main(argv: list[str]) -> int:
    """Parse, check, launch."""
    options = parse(argv)
    if options.help or not argv:
        print(USAGE, end="")
        return 0 if argv else 2
    if options.show:
        print_runs()
        return 0
    check(options)
    return launch(options)
