"""The paper's networks, and small ones for tests and demos."""
