"""The worker: the same loop on every engine."""

from easgd.worker.loop import Loop

__all__ = ["Loop"]
