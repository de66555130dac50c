"""The methods of the paper, one file each: the mathematics of the exchange, with no clock, I/O or process.

| method | file | paper |
|---|---|---|
| EASGD | `easgd.py` | equations 1-4, Algorithm 1 |
| EAMSGD | `eamsgd.py` | Algorithm 2 |
| DOWNPOUR | `downpour.py` | Algorithm 3 |
| MDOWNPOUR | `mdownpour.py` | Algorithms 4 and 5 |
| ADOWNPOUR, MVADOWNPOUR | `adownpour.py`, `mvadownpour.py` | section 5 |
| ADMM | `admm.py` | equations 6-8 |
| SGD, MSGD, ASGD, MVASGD | `sgd.py`, `msgd.py`, `asgd.py`, `mvasgd.py` | section 5 |
| the double average | `averaged(method)` in `base.py` | Lemmas 2 and 3 |
"""

from easgd.methods.admm import ADMM
from easgd.methods.adownpour import ADownpour
from easgd.methods.asgd import ASGD
from easgd.methods.base import Method, Slots, averaged
from easgd.methods.downpour import Downpour
from easgd.methods.eamsgd import EAMSGD
from easgd.methods.easgd import EASGD
from easgd.methods.mdownpour import MDownpour
from easgd.methods.msgd import MSGD
from easgd.methods.mvadownpour import MVADownpour
from easgd.methods.mvasgd import MVASGD
from easgd.methods.sgd import SGD

# The names of the command line and of configuration files.
METHODS: dict[str, type[Method]] = {
    "easgd": EASGD,
    "eamsgd": EAMSGD,
    "downpour": Downpour,
    "mdownpour": MDownpour,
    "adownpour": ADownpour,
    "mvadownpour": MVADownpour,
    "admm": ADMM,
    "sgd": SGD,
    "msgd": MSGD,
    "asgd": ASGD,
    "mvasgd": MVASGD,
}

__all__ = [
    "ADMM",
    "ASGD",
    "EAMSGD",
    "EASGD",
    "METHODS",
    "MSGD",
    "MVASGD",
    "SGD",
    "ADownpour",
    "Downpour",
    "MDownpour",
    "MVADownpour",
    "Method",
    "Slots",
    "averaged",
]
