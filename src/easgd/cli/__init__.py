"""The command line: finds the command, parses its arguments, nothing else.

Commands are modules, imported only when they are called, so that `easgd --help` answers without importing torch.
Each has a `main(argv) -> int | None`; a `SettingError` in it becomes one line on stderr and exit code 2.
"""

from __future__ import annotations

import importlib
import sys

from easgd.errors import SettingError, unknown

# name -> (module, one line for --help). Order is the order of a user's work.
COMMANDS = {
    "train": ("easgd.cli.train", "train one method, measure its center, leave a run folder"),
    "launch": (
        "easgd.cli.launch",
        "train a script on several processes, of this machine or a cluster; or join a run",
    ),
    "compare": ("easgd.cli.compare", "methods side by side over a grid of settings, each with its best learning rate"),
    "report": ("easgd.cli.report", "runs into a page, figures and tables: curves, time to an error, speed-ups"),
    "paper": ("easgd.cli.paper", "the paper's figures and tables, at the size of a test, a laptop or the paper"),
    "theory": ("easgd.cli.theory", "stability, variance and advice before a training run; figures of the analysis"),
    "data": ("easgd.cli.data", "make, verify and show data sets"),
    "bench": ("easgd.cli.bench", "measure this machine: ratios to a physical limit or to the plain alternative"),
    "doctor": ("easgd.cli.doctor", "what this machine can do, what to install; a block for bug reports"),
}


def usage() -> str:
    """Return the text of `easgd --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {help_}" for name, (_, help_) in COMMANDS.items())
    return (
        "usage: easgd COMMAND [options]\n\n"
        "Train PyTorch models with elastic averaging: p workers tied by a spring to one center.\n\n"
        f"commands:\n{rows}\n\n"
        "`easgd COMMAND --help` explains a command.\n"
        "example: easgd theory advise --workers 16 --lr 0.01 --period 10\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the process's exit code."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if args[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"easgd {version('easgd')}")
        return 0
    try:
        if args[0] not in COMMANDS:
            raise unknown("command", args[0], COMMANDS)
        module = importlib.import_module(COMMANDS[args[0]][0])
        return module.main(args[1:]) or 0
    except SettingError as error:
        print(f"easgd: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:  # how the parser ends after --help
        return int(end.code or 0)
    except KeyboardInterrupt:
        print("easgd: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `easgd … | head`: the reader has what it wanted.
        sys.stderr.close()
        return 0
