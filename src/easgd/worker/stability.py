"""What the theory says of a run's settings before it starts: a warning, or a refusal where a curvature is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from easgd import theory
from easgd.errors import SettingError
from easgd.methods import Method

FIRST_PERIOD = 10  # of a run whose period sets itself: the paper's, until something is measured


def warnings(method: Method, lr: float, workers: int, schedule: str, curvature: float | None = None) -> list[str]:
    """Return one line for each way in which the settings lie outside the stable region; mostly none."""
    return theory.check(
        method.name,
        lr=lr,
        workers=workers,
        period=max(FIRST_PERIOD, method.delay + 1) if method.period == "auto" else method.period,
        moving_rate=method.scale(lr, workers, workers) if method.is_elastic else None,
        momentum=getattr(method, "momentum", 0.0),
        rho=getattr(method, "rho", None) if method.name == "ADMM" else None,
        curvature=curvature,
        schedule=schedule,
        delay=max(1, method.delay),
    )


def stable_period(
    method: Method, lr: float, workers: int, schedule: str, curvature: float | None
) -> Callable[[int, int], bool] | None:
    """Return what says whether the method is stable at a period and a delay; None where no curvature is declared."""
    if curvature is None:
        return None

    def stable(period: int, delay: int = 1) -> bool:
        late = {"delay": delay} if delay > max(1, method.delay) else {}
        return not warnings(replace(method, period=period, **late), lr, workers, schedule, curvature)

    return stable


def refuse_unstable(method: Method, lr: float, workers: int, schedule: str, curvature: float) -> None:
    """Raise if the settings are unstable at a declared curvature."""
    problems = warnings(method, lr, workers, schedule, curvature)
    if problems:
        raise SettingError(problems[0])
