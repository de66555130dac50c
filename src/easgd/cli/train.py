"""`easgd train`: one method on one data set, measured at its center."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from easgd.cli.parsing import Command
from easgd.errors import SettingError
from easgd.settings import option
from easgd.training.config import FIELDS, Config


@dataclass(frozen=True)
class TrainOptions:
    """The options of `easgd train` that are no settings of the run."""

    config: Path | None = option("settings from a JSON or TOML file; flags override it", metavar="FILE")
    out: Path | None = option("run folder (a new one under runs/)", metavar="DIR")
    resume: Path | None = option("go on with a run from its newest checkpoint", metavar="RUN")
    json: bool = option("one line of JSON per evaluation, for programs", False)
    plain: bool = option("plain lines even in a terminal", False)
    tensorboard: bool = option("write TensorBoard events too (easgd[tensorboard])", False)


COMMAND = Command(
    "train", TrainOptions, "Train one model with one method, measure its center, leave a run folder.",
    [
        "train                       four EAMSGD workers on the digits, in seconds",
        "train --method easgd --period 64 --steps 1000",
        "train --data cifar10 --workers 2 --method eamsgd --lr 0.01 --epochs 10",
        "train --engine simulate --workers 16 --data cifar10 --seconds 60 --target 0.21",
        "train --method mypackage.mymethod:Damped --set damping=0.5      a method of your own",
        "train --config runs/a/config.json --seed 1     the same again, another seed",
        "train --resume runs/a                          go on after Ctrl-C, a kill or a crash",
    ],
    settings=Config, bare=True, usage="[options]",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `easgd train`."""
    options, given = COMMAND.parse_all(argv)
    if isinstance(given.get("settings"), dict):
        given["settings"] = tuple(sorted(given["settings"].items()))
    settings = {name: FIELDS[name].convert(value) for name, value in given.items()}
    if options.resume and (options.config or options.out):
        raise SettingError(f"--resume {options.resume}: it has its own settings and folder; leave --config, --out away")
    base = Config.load(options.config).as_dict() if options.config else {}
    config = Config.from_dict({**base, **settings})  # before torch is imported: a typing error answers at once

    from easgd.training.train import resume, train
    from easgd.training.view import choose

    view = choose(options.json, options.plain)
    if options.tensorboard:
        from easgd.training.tensorboard import Events

        view = Events(view)
    run = resume(options.resume, view=view, **settings) if options.resume else train(config, options.out, view=view)
    if not options.json:
        from easgd.training.summary import closing

        closing(run)
    if run.status["state"] == "interrupted":
        print(f"go on with: easgd train --resume {run.path}", file=sys.stderr)
        return 130
    return 0 if run.status["state"] == "finished" else 1
