"""Loops over memory: an exchange `plain` in torch, `fused` in one pass; `quantize`, `topk`; the `allocator`."""
