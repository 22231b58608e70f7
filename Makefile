# Two commands: `make serve` and `make test`. PYTHON picks the interpreter, VENV the environment.
PYTHON ?= $(shell .ci/find-python)
VENV   ?= .venv
JAX    ?= jax
# CUDA 13 needs driver 580 or newer (device_choice.py). Empty without a GPU.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1)
CUDA   := $(if $(DRIVER),$(shell [ "$(DRIVER)" -ge 580 ] && echo 13 || echo 12))
PIP    := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
# Two files of tests at once, but where they would share a GPU's memory.
PYTEST := $(VENV)/bin/python -m pytest $(if $(CUDA),,-n 2 --dist loadfile)

.DEFAULT_GOAL := help
.PHONY: serve test quick lint clients kernels clean help

help:  ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

serve: $(VENV)/.installed  ## serve the demo model on 127.0.0.1:8000
	$(VENV)/bin/jaxserve serve

test: $(VENV)/.installed-dev lint  ## lint, types, import rule, all tests
	$(PYTEST)

quick: $(VENV)/.installed-dev  ## the tests that take seconds
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed-dev  ## ruff, mypy, the import rule
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "jaxserve needs Python 3.11, 3.12 or 3.13"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing jaxserve into $(VENV)"
	$(PIP) "$(JAX)" -e ".$(if $(CUDA),[cuda$(CUDA)])"$(if $(CUDA), -c "constraints/cuda$(CUDA).txt")
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing jaxserve and its test tools into $(VENV)"
	$(PIP) "$(JAX)" -e ".[dev$(if $(CUDA),$(comma)cuda$(CUDA))]"$(if $(CUDA), -c "constraints/cuda$(CUDA).txt")
	@touch $@ $(VENV)/.installed

CLIENTS_VENV ?= .venv-clients
NODE_CLIENTS := tests/jaxserve/server/clients/node

clients: $(CLIENTS_VENV)/.installed $(NODE_CLIENTS)/node_modules  ## other people's clients against a real server: minutes
	$(CLIENTS_VENV)/bin/python -m pytest tests/jaxserve/server/clients

$(CLIENTS_VENV)/.installed: pyproject.toml
	@echo "installing clients into $(CLIENTS_VENV) (1 GB)"
	"$(PYTHON)" -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "$(JAX)" -e ".[clients]"
	@touch $@

# The CUDA compiler comes from the package index: of CUDA 13, or with CUDA=12.
KERNELS_CUDA  = $(or $(CUDA),13)
KERNELS_VENV ?= .venv-kernels-cuda$(KERNELS_CUDA)
COMPILERS_12  = nvidia-cuda-nvcc-cu12
COMPILERS_13  = nvidia-cuda-nvcc nvidia-nvvm

kernels: $(KERNELS_VENV)/.installed  ## machine code of the GPU kernels and of a step, with no GPU
	$(KERNELS_VENV)/bin/python -m bench.kernels.compiled_kernels
	$(KERNELS_VENV)/bin/python -m bench.kernels.compiled_products
	$(KERNELS_VENV)/bin/python -m bench.engine.compiled_steps

$(KERNELS_VENV)/.installed: pyproject.toml constraints/cuda$(KERNELS_CUDA).txt
	@echo "installing the CUDA compiler into $(KERNELS_VENV) (1.8 GB)"
	"$(PYTHON)" -m venv $(KERNELS_VENV)
	$(KERNELS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -e . -c constraints/cuda$(KERNELS_CUDA).txt \
	  jax jax-cuda$(KERNELS_CUDA)-plugin jax-cuda$(KERNELS_CUDA)-pjrt \
	  $(COMPILERS_$(KERNELS_CUDA)) nvidia-cuda-nvdisasm
	@touch $@

comma := ,

clean:  ## remove environments and caches
	rm -rf .venv .venv-* $(NODE_CLIENTS)/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
