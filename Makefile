# Two commands: `make serve` and `make test`. PYTHON picks the interpreter, VENV the environment.
PYTHON ?= $(shell .ci/find-python)
VENV   ?= .venv
JAX    ?= jax
CUDA   := $(if $(shell command -v nvidia-smi),cuda)
PIP    := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test quick lint clean

serve: $(VENV)/.installed
	$(VENV)/bin/jaxserve serve

test: $(VENV)/.installed-dev lint
	$(VENV)/bin/python -m pytest

quick: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -m "not slow"

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "jaxserve needs Python 3.11, 3.12 or 3.13"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing jaxserve into $(VENV)"
	$(PIP) "$(JAX)" -e ".$(if $(CUDA),[$(CUDA)])"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing jaxserve and its test tools into $(VENV)"
	$(PIP) "$(JAX)" -e ".[dev$(if $(CUDA),$(comma)$(CUDA))]"
	@touch $@ $(VENV)/.installed

comma := ,

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
