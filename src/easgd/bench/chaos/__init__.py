"""Goodput under kills: the share of a fault-free run's steps that still reach the center, beside DDP under torchrun.

Real processes, real SIGKILLs at seeded moments, for both the same. A step has reached the center when an exchange (of
DDP: a checkpoint, every tenth step too) holds it. Time counts from the moment at which all workers train.
"""

from easgd.bench.chaos.measure import rows

__all__ = ["rows"]
