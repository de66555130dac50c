"""A worker that is a group of ranks: which of them exchanges what with the center, and how the others learn of it."""
