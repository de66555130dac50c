"""The loops over memory that an exchange is made of: `plain` in torch, `fused` in one pass; and the allocator."""
