"""The paper's figures and tables as recipes: `easgd paper NAME --scale smoke | laptop | paper`.

scales    the three sizes of every experiment: data, network, budgets
rates     the learning rates, per method and scale
grids     which runs a recipe needs, as settings with lists in them
recipes   the table of recipes: what of the paper each is, its grid, how it is drawn
images    the generated images that replace ImageNet below paper scale
drawing   one function per kind of figure, from the report's descriptions
traffic   the figure of bytes
table     the table of the wallclock time
estimate  how long a recipe takes on this machine
archive   what is written beside a figure: where it came from, and its runs
make      makes a recipe: runs, draws, archives
"""
