"""The figures of the analysis, one module each: `compute` gives numbers, `draw` a figure, `make` writes the files."""

FIGURES = ("fig1", "chaos", "mse_grid", "limit", "double_average")
