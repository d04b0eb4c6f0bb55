# Two commands on a fresh machine with Python 3.11: each sets everything up by itself.
#   make quickstart   SFT trajectories -> a better policy, then a table and a plot
#   make test         the whole test suite

PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: quickstart test check clean

quickstart: .venv/ready
	$(BIN)/python -m examples.quickstart

test: .venv/ready
	$(BIN)/python -m pytest

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow"

.venv/ready: requirements/cpu.txt pyproject.toml
	sh requirements/install.sh $(PYTHON)
	touch $@

clean:
	rm -rf outputs
