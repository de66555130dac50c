"""Where the center variable lives."""
