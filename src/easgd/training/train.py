"""`easgd.train`: settings in, a finished run out. The same call on every engine, new or resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch

from easgd.checkpoint import save_tensors
from easgd.console import warn
from easgd.engines.run import CAN_DO
from easgd.errors import refuse
from easgd.faults import KINDS, check_plan, load_plan
from easgd.files import reason
from easgd.signals import Stoppable, StopRequest, handle_signals
from easgd.training.config import Config
from easgd.training.folder import RunFolder, alone, check_free, default_folder
from easgd.training.run import Run
from easgd.training.task import Task
from easgd.training.view import Silent, View, shielded

ANEW = ("steps", "epochs", "seconds", "target", "evaluate", "checkpoint_every", "parallel", "restarts", "history")
"""Settings that a resumed run may change."""
Ended = tuple[str, str]
"""How a run ended: its state and the reason."""


class Runner(Stoppable, Protocol):
    """Carries out one run on an engine."""

    seconds: float

    def load(self) -> bool:
        """Go on from the newest checkpoint, if there is one."""

    def run(self) -> Ended:
        """Train; return how the run ended and why."""

    def center(self) -> dict[str, torch.Tensor] | None:
        """Return the final center if it is still to be saved."""

    def close(self) -> None:
        """Close files and end processes."""


def train(
    config: Config | dict[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    view: View | None = None,
    **settings: Any,
) -> Run:
    """Train one model with one method, measure its center, leave a run folder.

    Args:
        config: a `Config` or a dict of its fields; keywords given besides override it.
        out: the run folder; a new one under runs/ if None.
        view: where progress is shown; nowhere if None.

    Returns:
        The `Run`: `run.center`, `run.curves()`, `run.path`.

    Example:
        >>> import easgd
        >>> run = easgd.train(method="easgd", workers=4, engine="simulate", network="digits-mlp", steps=60)
        >>> run.best_error < 0.2
        True
    """
    base = config.as_dict() if isinstance(config, Config) else dict(config or {})
    resolved = Config.from_dict({**base, **settings}).resolved()
    folder = RunFolder(out if out is not None else default_folder(resolved))
    check_free(folder.path)
    faults = load_plan(Path(resolved.faults)) if resolved.faults else []
    check_plan(faults, resolved.workers or 1, resolved.engine, CAN_DO.get(resolved.engine, KINDS))
    Task(resolved).check_memory()  # what cannot be trained is refused before anything is written
    folder.create(resolved, faults)
    with alone(folder.path):
        return _carry_out(resolved, folder, shielded(view or Silent()), resumed=False)


def resume(run: str | os.PathLike[str], *, view: View | None = None, **settings: Any) -> Run:
    """Go on with a run that was interrupted or killed, from its newest checkpoint.

    Settings of the budget (`steps`, `epochs`, `seconds`, `target`) may change, to train longer; so may those that
    change no number of the training. Other changes are refused.

    Example:
        >>> import easgd
        >>> run = easgd.train(method="easgd", engine="simulate", network="digits-mlp", steps=20)
        >>> easgd.resume(run.path, steps=30).status["state"]
        'finished'
    """
    folder = RunFolder(run)
    config = folder.config()
    for name, value in settings.items():
        if name not in ANEW and value != getattr(config, name, None):
            remedy = f"leave it away; {', '.join(ANEW)} may be given anew"
            raise refuse(name, value, f"a run that goes on keeps {getattr(config, name, None)}", remedy)
    with alone(folder.path):
        if settings:
            config = Config.from_dict({**config.as_dict(), **settings}).resolved()
            folder.write_config(config)
        return _carry_out(config, folder, shielded(view or Silent()), resumed=True)


def runner_of(config: Config) -> type[Any]:
    """Return the class of the engine's runner."""
    if config.engine == "simulate":
        from easgd.training.simulation_runner import SimulationRunner

        return SimulationRunner
    from easgd.training.process_runner import ProcessRunner

    return ProcessRunner


def _carry_out(config: Config, folder: RunFolder, view: View, *, resumed: bool) -> Run:
    torch.set_num_threads(1)
    request = StopRequest()
    with handle_signals(request):
        runner: Runner = runner_of(config)(config, folder, view)
        request.tell(runner)
        try:
            if resumed:
                runner.load()
            view.begin(config, str(folder.path))
            ended = save_model(folder, runner.run(), runner.center())
        except BaseException as error:
            folder.set_status("failed", f"{type(error).__name__}: {error}", seconds=runner.seconds)
            raise
        finally:
            runner.close()
    folder.set_status(*ended, seconds=runner.seconds)
    view.end(*ended)
    return Run(folder.path)


def save_model(folder: RunFolder, ended: Ended, center: dict[str, torch.Tensor] | None) -> Ended:
    """Write the final center, if it is still to be saved; return `ended`, or "failed" if the disk does not take it."""
    try:
        if center is not None:
            save_tensors(folder.model, center)
    except OSError as error:
        why = f"the final model could not be written to {folder.model} ({reason(error)})"
        warn(f"{why}; make room and go on with: easgd train --resume {folder.path}")
        return "failed", why
    return ended
