"""Elastic averaging for PyTorch."""
