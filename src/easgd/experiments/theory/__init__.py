"""The figures of the analysis, one module each: `compute` gives numbers, `draw` a figure, `make` writes the files."""
