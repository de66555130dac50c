"""Elementwise operations of an exchange: `plain` in torch, `fused` in one pass, `quantize` to int8; `allocator`."""
