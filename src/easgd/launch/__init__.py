"""What the engines share: the launcher, its event log, the relay of output, the run directory, the result."""
