"""The second number of every seed, which keeps independent draws of one run apart.

A generator is seeded with (seed of the run, tag, worker or loader, count). Two uses with one tag would draw the same
numbers. Published runs depend on the values: add a tag, do not change one.
"""

CURSORS = 1  # where a loader starts its next pass: (loader, cycle)
SHUFFLE = 2  # the order of a refilled pool: (worker, refill)
CROPS = 3  # crops and flips of a batch: (worker, batch)
DROPOUT = 4  # dropout of a training step: (worker, step)
SHARDING = 5  # the order of the user's own DataLoader: (rank, epoch)
