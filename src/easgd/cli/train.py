"""`easgd train`: one method on one data set, measured at its center."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from easgd.cli.options import Parser
from easgd.errors import SettingError
from easgd.training.config import FIELDS, Config, convert

EXAMPLES = """examples:
  easgd train                                          four EAMSGD workers on the digits, in seconds
  easgd train --method easgd --period 64 --steps 1000
  easgd train --data cifar10 --workers 2 --method eamsgd --lr 0.01 --epochs 10
  easgd train --engine simulate --workers 16 --data cifar10 --seconds 60 --target 0.21
  easgd train --config runs/a/config.json --seed 1     the same again, another seed
  easgd train --resume runs/a                          go on after Ctrl-C, a kill or a crash
"""

# The fields in the order of a user's questions.
GROUPS = {
    "what": ("method", "workers", "data", "network", "engine"),
    "the spring and the step": (
        "lr", "period", "beta", "moving_rate", "rho", "momentum", "rate", "weight_decay", "optimizer", "gain", "batch",
        "decay", "gamma", "schedule",
    ),
    "how long (500 steps if nothing is said)": ("steps", "epochs", "seconds", "target"),
    "chance": ("seed", "init_seed"),
    "measuring and saving": ("evaluate", "evaluate_every", "train_subset", "checkpoint_every"),
    "engines": ("cost", "parallel", "compression", "restarts"),
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Build the parser; every field of `Config` is a flag."""
    top = Parser(
        prog="easgd train", description="Train one model with one method, measure its center, leave a run folder.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    top.add_argument("--config", metavar="FILE", help="settings from a JSON or TOML file; flags override it")
    top.add_argument("--out", metavar="FOLDER", help="the run folder (a new one under runs/)")
    top.add_argument("--resume", metavar="RUN", help="go on with a run from its newest checkpoint")
    top.add_argument("--json", action="store_true", help="one line of JSON per evaluation, for programs")
    top.add_argument("--plain", action="store_true", help="plain lines even in a terminal")
    top.add_argument("--tensorboard", action="store_true", help="write TensorBoard events too (easgd[tensorboard])")
    defaults = Config()
    for title, names in GROUPS.items():
        group = top.add_argument_group(title)
        for name in names:
            info, default = FIELDS[name], getattr(defaults, name)
            shown = "" if default is None else f" ({default})"
            choices = ": " + ", ".join(info["choices"]) if info["choices"] else ""
            group.add_argument(
                f"--{name.replace('_', '-')}", dest=name, metavar="X", help=(info["help"] + choices + shown)
            )
    return top


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given as flags, in their types."""
    given = {name: getattr(options, name) for name in FIELDS if getattr(options, name) is not None}
    return {name: convert(name, value) for name, value in given.items()}


def main(argv: list[str]) -> int:
    """Run `easgd train`."""
    try:
        options = parser().parse_args(argv)
    except SystemExit as end:  # how argparse ends after --help
        return int(end.code or 0)
    settings = settings_of(options)
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
