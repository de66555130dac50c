# `make demo` and `make test` need nothing but Python 3.11, make and a package registry.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export PYTHONHASHSEED := 0

.PHONY: setup demo demo-figures test test-heavy test-slow test-integrations soak chaos mutants paper paper-smoke docs release-check lint types \
  clean

setup: .venv/.ready

# The stamp makes a second `make setup` instant; it is renewed when what is installed may have changed.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "easgd needs Python 3.11 or later: make setup PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python tools/compile_loops.py
	@touch $@

demo: setup
	@rm -rf demo
	@echo "1 of 2: four processes train. One is killed; nobody waits for it, and it starts again from the center."
	@$(BIN)/easgd launch -n 4 --restarts 1 --out demo/processes examples/preempted.py --lose 2
	@echo
	@echo "2 of 2: four machines of unequal speed, on a virtual clock. EAMSGD is elastic averaging, LocalSGD with"
	@echo "        τ = 1 data-parallel training, MSGD the fastest machine alone."
	@$(BIN)/easgd compare examples/demo.toml --out demo/comparison

# The figures of README and site that show the demo; the picture of its page needs Chromium.
demo-figures: demo
	cp demo/comparison/report/curves.png docs/figures/demo.png
	chromium --headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --hide-scrollbars \
	  --user-data-dir=$$(mktemp -d) --window-size=1270,900 --virtual-time-budget=4000 \
	  --screenshot=docs/figures/report.png "file://$(CURDIR)/demo/comparison/report/index.html"

# Four at a time on two processors: a test often waits for processes that it has started.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --ignore tests/integrations --ignore tests/examples
test: setup
	$(PYTEST)

# Whole runs and clusters that are killed, stopped and started again; CI runs these too.
test-heavy: setup
	$(PYTEST) -m heavy

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Kills, stops, joiners and full disks for so long, on each engine; the figures are in build/soak-*.json.
MINUTES ?= 30
soak: setup
	@mkdir -p build
	EASGD_SOAK_SECONDS=$$((60 * $(MINUTES))) EASGD_SOAK_OUT=$(CURDIR)/build OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -s \
	  tests/engines/local/test_soak_local.py tests/engines/ray/test_soak_ray.py

# Break the code on purpose, a line at a time, and see whether the nearest tests notice (half an hour).
mutants: setup
	$(BIN)/python tools/mutants.py

# The engines' own code under a seeded scheduler: many seeds of both, or ENGINE=local SEED=17 with a trace.
SEEDS ?= 1000
FIRST ?= 0
ENGINE ?= all
chaos: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests/support $(BIN)/python -m chaos --engine $(ENGINE) $(if $(SEED),--seed $(SEED),--first $(FIRST) --seeds $(SEEDS))

# With the real Lightning, transformers, accelerate, trackers and torchft, in an environment of their own; and the gallery.
test-integrations: .venv-integrations/.ready
	.venv-integrations/bin/python -m pytest -n 2 tests/integrations tests/examples

.venv-integrations/.ready: pyproject.toml constraints.txt
	test -x .venv-integrations/bin/python || $(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[data,report,lightning,transformers,accelerate,wandb,mlflow,tensorboard,ray]' torchft schedulefree pytest \
	  pytest-timeout pytest-xdist hypothesis
	@touch $@

# Every recipe on digits, in minutes; it fails where a figure is missing or empty.
paper-smoke: setup
	$(BIN)/python -m easgd paper all --scale smoke --out build/paper-smoke --plain

# CIFAR-10 with the paper's network, in hours (`easgd paper list`); interrupted, the same command goes on.
paper: setup
	$(BIN)/python -m easgd paper all --scale laptop

# The site, into build/site: offline, without warnings, links checked. Open build/site/index.html.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "the site is in build/site/index.html"

.venv-docs/.ready: pyproject.toml constraints.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# Wheel and sdist, installed into clean environments outside this folder and tried. PYTHON chooses the interpreter.
release-check:
	$(PYTHON) tools/release_check.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: setup
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-docs .venv-integrations build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
