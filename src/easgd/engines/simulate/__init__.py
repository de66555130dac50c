"""The simulator: real gradients, modelled time, one process."""

from easgd.engines.simulate.api import Trajectory, simulate
from easgd.engines.simulate.cost import CostModel
from easgd.engines.simulate.engine import Simulation
from easgd.engines.simulate.hierarchy import Machines
from easgd.engines.simulate.model import ModelGradient
from easgd.faults import Fault

__all__ = ["CostModel", "Fault", "Machines", "ModelGradient", "Simulation", "Trajectory", "simulate"]
