"""`easgd.train`: settings in, a finished run out. The same call on every engine, new or resumed."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

from easgd.errors import refuse
from easgd.signals import handle_signals
from easgd.training.config import Config
from easgd.training.folder import RunFolder, alone, check_free, default_folder, write_model
from easgd.training.run import Run
from easgd.training.task import Task
from easgd.training.view import Silent, View

ANEW = ("steps", "epochs", "seconds", "target", "evaluate", "checkpoint_every", "parallel", "restarts")
"""What a run that goes on may be told anew."""


class Stoppable(Protocol):
    """What can be asked to end."""

    stop_requested: bool


class Runner(Stoppable, Protocol):
    """An engine's way to carry out one run."""

    seconds: float

    def load(self) -> bool:
        """Go on from the newest checkpoint, if there is one."""

    def run(self) -> tuple[str, str]:
        """Train; return how the run ended (a state) and why."""

    def center(self) -> dict[str, torch.Tensor] | None:
        """The final center."""

    def close(self) -> None:
        """Let go of files and processes."""


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
    Task(resolved)  # what cannot be trained is refused before anything is written
    folder.create(resolved)
    with alone(folder.path):
        return _carry_out(resolved, folder, view or Silent(), resumed=False)


def resume(run: str | os.PathLike[str], *, view: View | None = None, **settings: Any) -> Run:
    """Go on with a run that was interrupted or killed, from its newest checkpoint.

    Settings of the budget (`steps`, `epochs`, `seconds`, `target`) may be given anew, to train longer; so may those
    that change no number of the training. Others would make it another run.
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
        return _carry_out(config, folder, view or Silent(), resumed=True)


def runner_of(config: Config) -> type[Any]:
    """The class that runs this engine."""
    if config.engine == "simulate":
        from easgd.training.simulation_runner import SimulationRunner

        return SimulationRunner
    from easgd.training.process_runner import ProcessRunner

    return ProcessRunner


def _carry_out(config: Config, folder: RunFolder, view: View, *, resumed: bool) -> Run:
    torch.set_num_threads(1)
    asked = StopRequest()
    with handle_signals(asked):
        runner: Runner = runner_of(config)(config, folder, view)
        asked.tell(runner)
        try:
            if resumed:
                runner.load()
            view.begin(config, str(folder.path))
            state, reason = runner.run()
            if (center := runner.center()) is not None:
                write_model(folder.model, center)
        except BaseException as error:
            folder.set_status("failed", f"{type(error).__name__}: {error}", seconds=runner.seconds)
            raise
        finally:
            runner.close()
    folder.set_status(state, reason, seconds=runner.seconds)
    view.end(state, reason)
    return Run(folder.path)


class StopRequest:
    """The first Ctrl-C or SIGTERM asks the run to save itself and end, also before there is one; the second ends it."""

    def __init__(self) -> None:
        self._already = False
        self._runner: Stoppable | None = None

    def tell(self, runner: Stoppable) -> None:
        """From now on, whoever asks asks this one."""
        self._runner = runner
        runner.stop_requested = self._already

    def __call__(self, number: int, frame: Any) -> None:
        """Be asked, as a signal's handler."""
        if self._already:
            raise KeyboardInterrupt
        self._already = True
        if self._runner is not None:
            self._runner.stop_requested = True
