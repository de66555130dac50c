"""One thread per process: tests run two at a time on two cores, and bits must not depend on the machine."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
