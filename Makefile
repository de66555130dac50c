# `make demo` and `make test` need nothing but Python 3.11, make and a package registry.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export PYTHONHASHSEED := 0

.PHONY: setup demo test test-slow lint types bench clean

setup: .venv/.ready

# The stamp makes a second `make setup` instant; it is renewed when what is installed may have changed.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "easgd needs Python 3.11 or later: make setup PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python -m easgd.experiments.demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: setup
	$(BIN)/mypy

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
