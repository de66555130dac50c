"""Fused one-pass loops over memory."""
