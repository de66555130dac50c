"""The methods, one file each: the mathematics of the exchange, with no clock, I/O or process.

A method's file says all that the product needs to know of it (`Method`, `registry`); no list of methods stands
elsewhere. Classes are imported when they are first used, so that their names are known without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from easgd.methods.registry import built_in

# For type checkers, which do not follow `__getattr__`.
if TYPE_CHECKING:
    from easgd.methods.admm import ADMM as ADMM
    from easgd.methods.adownpour import ADownpour as ADownpour
    from easgd.methods.asgd import ASGD as ASGD
    from easgd.methods.asyncdiloco import AsyncDiLoCo as AsyncDiLoCo
    from easgd.methods.base import Method as Method
    from easgd.methods.base import Slots as Slots
    from easgd.methods.base import averaged as averaged
    from easgd.methods.diloco import DiLoCo as DiLoCo
    from easgd.methods.downpour import Downpour as Downpour
    from easgd.methods.eamsgd import EAMSGD as EAMSGD
    from easgd.methods.easgd import EASGD as EASGD
    from easgd.methods.localsgd import LocalSGD as LocalSGD
    from easgd.methods.mdownpour import MDownpour as MDownpour
    from easgd.methods.msgd import MSGD as MSGD
    from easgd.methods.mvadownpour import MVADownpour as MVADownpour
    from easgd.methods.mvasgd import MVASGD as MVASGD
    from easgd.methods.sgd import SGD as SGD


def __getattr__(name: str) -> Any:
    # A class's name in lower case is its file's; the submodule itself may be asked for in lower case.
    home = "base" if name in ("Method", "Slots", "averaged") else name.lower()
    if name != home and (home == "base" or home in built_in()):
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
