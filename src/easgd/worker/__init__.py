"""The worker: the same loop on every engine, and `attach`, which hooks it to a user's training script."""
