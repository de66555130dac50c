"""Data sets as memory-mapped files, the paper's sampling, preprocessing."""
