"""Elastic averaging inside other people's training loops; each module needs its own extra."""
