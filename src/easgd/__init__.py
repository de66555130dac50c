"""Elastic averaging for PyTorch: p workers train replicas with their own optimizers, tied by a spring to a center.

The system of Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD" (NIPS 2015).
Names are imported when they are first used, so that `import easgd` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from easgd import theory as theory
    from easgd.engines.run import Result, run
    from easgd.engines.simulate import CostModel, Fault, Machines, ModelGradient, Simulation, Trajectory, simulate
    from easgd.errors import CenterLostError, NonFiniteError, SettingError
    from easgd.learning_rate import Stagnation, decay
    from easgd.methods import (
        ADMM,
        EAMSGD,
        EASGD,
        MSGD,
        MVASGD,
        ADownpour,
        AsyncDiLoCo,
        DiLoCo,
        Downpour,
        LocalSGD,
        MDownpour,
        Method,
        MVADownpour,
        averaged,
    )
    from easgd.methods import ASGD as ASGD
    from easgd.methods import SGD as SGD
    from easgd.methods.registry import register
    from easgd.report.write import write_report
    from easgd.training.compare import compare
    from easgd.training.config import Config
    from easgd.training.run import Run
    from easgd.training.train import resume, train
    from easgd.worker.attach import attach
    from easgd.worker.worker import Worker

_HOMES = {
    "easgd.methods.base": "Method averaged",
    "easgd.methods.registry": "register",
    "easgd.engines.simulate": "CostModel Fault Machines ModelGradient Simulation Trajectory simulate",
    "easgd.errors": "CenterLostError NonFiniteError SettingError",
    "easgd.engines.run": "Result run",
    "easgd.report.write": "write_report",
    "easgd.learning_rate": "Stagnation decay",
    "easgd.training.compare": "compare",
    "easgd.training.config": "Config",
    "easgd.training.run": "Run",
    "easgd.training.train": "resume train",
    "easgd.worker.attach": "attach",
    "easgd.worker.worker": "Worker",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

# Without SGD and ASGD, which torch.optim has too: `from easgd import *` must not hide those. `easgd.SGD` is there.
__all__ = [
    "ADMM",
    "EAMSGD",
    "EASGD",
    "MSGD",
    "MVASGD",
    "ADownpour",
    "AsyncDiLoCo",
    "CenterLostError",
    "Config",
    "CostModel",
    "DiLoCo",
    "Downpour",
    "Fault",
    "LocalSGD",
    "MDownpour",
    "MVADownpour",
    "Machines",
    "Method",
    "ModelGradient",
    "NonFiniteError",
    "Result",
    "Run",
    "SettingError",
    "Simulation",
    "Stagnation",
    "Trajectory",
    "Worker",
    "attach",
    "averaged",
    "compare",
    "decay",
    "register",
    "resume",
    "run",
    "simulate",
    "theory",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in ("theory", "data", "models"):
        return importlib.import_module(f"easgd.{name}")
    try:
        return getattr(importlib.import_module("easgd.methods"), name)  # the classes of methods
    except AttributeError:
        raise AttributeError(f"module 'easgd' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return __all__
