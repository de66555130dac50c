"""The paper's analysis as functions."""
