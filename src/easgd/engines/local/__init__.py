"""The local engine: one process per worker, the center in shared memory, a launcher that only watches."""
