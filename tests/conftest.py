"""One thread per process: tests run two at a time on two cores, and bits must not depend on the machine.

Hypothesis tries the same examples every time: a test that fails must fail again.
"""

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
