# make demo and make test work as the first command on a bare machine with python3, make and gcc.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Three tests a core: a third of their time they wait for a process of theirs.
WORKERS ?= $(shell echo $$((3 * $$(nproc 2>/dev/null || echo 2))))
# Tests start processes by the hundred: each would compile anew what it imports where no bytecode may be kept.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Real programs for the tests, where they can be had.
FETCHED := $(VENV)/nsys $(VENV)/browser $(VENV)/prometheus $(VENV)/schemas

.PHONY: help demo test test-all print-pytest lint format bench screenshots clean

help:
	@echo "make demo         set up $(VENV) and show the monitor on a recorded run of a real H200"
	@echo "make test         set up and run the tests, but for the slow ones (tests/slow.py)"
	@echo "make test-all     the slow ones too, as CI does"
	@echo "make lint         ruff, mypy --strict, import-linter"
	@echo "make bench        every figure in docs/figures.md, as ratios against a peer or a primitive"
	@echo "make screenshots  draw the pictures under screenshots/ again"

# Two environments in one: the demo needs the program only, the tests a CPU build of torch as well.
$(VENV)/app: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment could be made in $(VENV): on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/dev: pyproject.toml $(VENV)/app
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

# What ours is measured beside.
$(VENV)/bench: pyproject.toml $(VENV)/dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[bench]'
	@touch $@

# A real nsys for the tests of captures, where apt-get can bring one; elsewhere they skip and say why.
$(VENV)/nsys: tests/fetch_nsys.sh $(VENV)/app
	@PYTHON=$(abspath $(BIN))/python tests/fetch_nsys.sh
	@touch $@

# A real browser for the tests of a report's page, likewise.
$(VENV)/browser: tests/fetch_browser.sh $(VENV)/app
	@tests/fetch_browser.sh
	@touch $@

# The real HTA, which opens what was captured; a hundred packages of its own, so for `make test-all` alone.
$(VENV)/hta: tests/fetch_hta.sh $(VENV)/app
	@PYTHON=$(abspath $(BIN))/python tests/fetch_hta.sh
	@touch $@

# The real JAX, likewise for `make test-all` alone.
$(VENV)/jax: tests/fetch_jax.sh $(VENV)/app
	@PYTHON=$(abspath $(BIN))/python tests/fetch_jax.sh
	@touch $@

# The real tpu-info, likewise for `make test-all` alone.
$(VENV)/tpu: tests/fetch_tpu.sh $(VENV)/app
	@PYTHON=$(abspath $(BIN))/python tests/fetch_tpu.sh
	@touch $@

# A real Prometheus for the tests of what is told to one, likewise.
$(VENV)/prometheus: tests/fetch_prometheus.sh $(VENV)/app
	@tests/fetch_prometheus.sh
	@touch $@

# What the files in deploy/ are checked against, likewise.
$(VENV)/schemas: tests/fetch_schemas.sh $(VENV)/app
	@tests/fetch_schemas.sh
	@touch $@

# A real SLURM and a real sshd for the tests of docs/slurm.md and docs/ssh.md, likewise; for `make test-all` alone.
$(VENV)/hosts: tests/fetch_hosts.sh $(VENV)/app
	@tests/fetch_hosts.sh
	@touch $@

demo: $(VENV)/app
	$(BIN)/llmtop demo

test: $(VENV)/dev $(FETCHED)
	$(PYTEST) -m "not slow"

test-all: $(VENV)/dev $(FETCHED) $(VENV)/hta $(VENV)/jax $(VENV)/tpu $(VENV)/hosts
	$(PYTEST) -m "slow or not slow"

# For .ci/run, which wants pytest's exit code.
print-pytest:
	@echo $(PYTEST)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks

screenshots: $(VENV)/dev
	$(BIN)/python -m screenshots.draw
	$(BIN)/python -m screenshots.moving

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache build dist
