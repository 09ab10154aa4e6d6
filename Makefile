# make demo and make test work as the first command on a bare machine with python3, make and gcc.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Two tests a core: a third of their time they wait for a process of theirs. Three a core were no faster (326 s against
# 273 s for 138 slow tests on two cores), and each has to wait for longer.
WORKERS ?= $(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2))))
# Tests start processes by the hundred: each would compile anew what it imports where no bytecode may be kept.
pytest_of = env -u PYTHONDONTWRITEBYTECODE $(1)/python -m pytest -n $(WORKERS) --dist worksteal
PYTEST := $(call pytest_of,$(BIN))

# The versions of all that is installed here. In pip's environment and not as its option: so it holds for the build of
# llmtop itself too (PIP_BUILD_CONSTRAINT from pip 25.3 on).
CONSTRAINTS ?= constraints.txt
INSTALL = PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) \
  $(BIN)/python -m pip install -q --disable-pip-version-check $(UPGRADE)
NOT_INSTALLED = { echo "pip could not install the packages into $(VENV) (see above): check the network, or pip's index" >&2; exit 1; }
# pip resolves neither for another Python nor for the oldest versions; uv (17 MB) does.
UV := .cache/uv/bin/uv

# Real programs for the tests, where they can be had.
FETCHED := $(VENV)/nsys $(VENV)/browser $(VENV)/prometheus $(VENV)/schemas

.PHONY: help demo test test-all test-latest test-oldest test-newest constraints flaky mutants gpu-day \
  newcomer lint format bench screenshots words clean

help:
	@echo "make demo         set up $(VENV) and show the monitor on a recorded run of a real H200"
	@echo "make test         set up and run the tests, but for the slow ones (@pytest.mark.slow)"
	@echo "make test-all     the slow ones too, as CI does"
	@echo "make test-latest  make test, with the newest version of each package (in .cache/latest)"
	@echo "make test-oldest, make test-newest   tests without torch, with the oldest and the newest allowed packages"
	@echo "make flaky        make test under load, on one core, as another user, ...: a slice of 40 minutes, resumed"
	@echo "make mutants      change single lines and count how many of 150 changes the tests notice; resumed"
	@echo "make gpu-day      the checks of tests/gpu that are due: a slice of 9 minutes, resumed (ARGS=--plan, --dry-run)"
	@echo "make newcomer     clone into an empty folder as an ordinary user and run README, tutorial and all command blocks"
	@echo "make constraints  write constraints.txt anew: the newest version of each package"
	@echo "make lint         ruff, mypy --strict, import-linter, and the tests that read the source (@pytest.mark.shape)"
	@echo "make bench        the benchmarks; those with a table in docs/figures.md write it"
	@echo "make words        print every sentence of screens, alerts, doctor, help and errors, with examples"
	@echo "make screenshots  draw the pictures under screenshots/ again"

# Two environments in one: the demo needs the program only, the tests a CPU build of torch as well.
$(VENV)/app: pyproject.toml $(CONSTRAINTS)
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment could be made in $(VENV): on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$(INSTALL) -e . || $(NOT_INSTALLED)
	@touch $@

$(VENV)/dev: pyproject.toml $(CONSTRAINTS) $(VENV)/app
	@$(INSTALL) -e '.[dev]' || $(NOT_INSTALLED)
	@touch $@

# Test modules as bytecode with pytest's asserts. Else each of the workers compiles all of them, 12 s of a core each.
$(VENV)/compiled: $(VENV)/dev
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q --collect-only > $(VENV)/compiled.txt 2>&1 || \
	  { tail -n 40 $(VENV)/compiled.txt; exit 1; }
	@touch $@

# What ours is measured beside.
$(VENV)/bench: pyproject.toml $(CONSTRAINTS) $(VENV)/dev
	@$(INSTALL) -e '.[bench]' || $(NOT_INSTALLED)
	@touch $@

# Which lines a test executes.
$(VENV)/mutants: pyproject.toml $(CONSTRAINTS) $(VENV)/dev
	@$(INSTALL) -e '.[mutants]' || $(NOT_INSTALLED)
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
$(VENV)/hta: tests/fetch_hta.sh $(CONSTRAINTS) $(VENV)/app
	@PYTHON=$(abspath $(BIN))/python tests/fetch_hta.sh
	@touch $@

# The real JAX, likewise for `make test-all` alone.
$(VENV)/jax: tests/fetch_jax.sh $(CONSTRAINTS) $(VENV)/app
	@PYTHON=$(abspath $(BIN))/python tests/fetch_jax.sh
	@touch $@

# The real tpu-info, likewise for `make test-all` alone.
$(VENV)/tpu: tests/fetch_tpu.sh $(CONSTRAINTS) $(VENV)/app
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

# What tests need, the programs fetched while pip installs the packages.
prepare = @$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j2) $(VENV)/compiled $(FETCHED) $(1)

test:
	$(call prepare)
	$(PYTEST) -m "not slow and not shape"

test-all:
	$(call prepare,$(VENV)/hta $(VENV)/jax $(VENV)/tpu $(VENV)/hosts)
	$(PYTEST) -m "(slow or not slow) and not shape"

# A slice of 40 minutes; run it again until it exits with 0. MINUTES and ARGS="--only 'one core'" change it.
flaky: $(VENV)/dev $(FETCHED)
	$(BIN)/python -m tests.support.flaky $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

# The first call records which tests execute which lines.
mutants: $(VENV)/mutants $(FETCHED)
	$(BIN)/python -m tests.support.mutants $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

# ARGS="clone demo" takes only these steps.
newcomer: $(VENV)/dev
	$(BIN)/python -m tests.support.newcomer $(ARGS)

gpu-day: $(VENV)/dev
	$(BIN)/python -m tests.gpu.day $(ARGS)

# What `pip install` outside this checkout brings: the newest versions that pyproject.toml allows.
test-latest:
	@rm -f .cache/latest/app .cache/latest/dev
	$(MAKE) VENV=.cache/latest CONSTRAINTS= UPGRADE='--upgrade --upgrade-strategy eager' test

# The bounds of pyproject.toml are true: the tests that need no torch, with the oldest versions that it allows of what
# llmtop itself needs, and with the newest. Wheels only: some of the oldest cannot be built by a Python of today.
LIGHT_TOOLS := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis pyte pexpect pillow
LIGHT_TESTS := tests/cli/test_config.py tests/collectors/nvml/test_drivers.py tests/rules tests/model/test_alerts.py \
  tests/model/test_bottlenecks.py tests/test_format.py tests/system/test_procfs.py tests/recording/test_reader_writer.py
test-oldest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-oldest test-newest: test-%: $(UV)
	@rm -rf .cache/$*
	@$(UV) venv -q --python $(BIN)/python .cache/$*
	@$(UV) pip install -q --python .cache/$*/bin/python -c constraints.txt $(LIGHT_TOOLS)
	@$(UV) pip install -q --python .cache/$*/bin/python --resolution $(RESOLUTION) --upgrade \
	  --only-binary :all: --no-binary llmtop-monitor -e '.[amd,cluster,kernels,tpu]'
	$(call pytest_of,.cache/$*/bin) -q -m "not slow and not torch and not shape" $(LIGHT_TESTS)

# One resolution for all Pythons, extras and tests/fetched.in, with a marker where a Python has another version.
constraints: $(UV)
	UV_CUSTOM_COMPILE_COMMAND="make constraints" $(UV) pip compile -q --no-python-downloads --upgrade --universal \
	  --python-version 3.10 --all-extras --strip-extras --no-annotate -o constraints.txt pyproject.toml tests/fetched.in

$(UV): $(VENV)/app
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --upgrade --target .cache/uv uv || \
	  { echo "uv could not be installed into .cache/uv (see above): check the network, or pip's index" >&2; exit 1; }
	@touch $@

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q -m shape $$(grep -rlE 'mark\.shape' tests --include='test_*.py')

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks --write

# KIND=alert (doctor, error, help, screen) prints one kind.
words: $(VENV)/app
	@$(BIN)/python -m tests.support.words $(KIND)

screenshots: $(VENV)/dev
	$(BIN)/python -m screenshots.draw
	$(BIN)/python -m screenshots.moving

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache build dist
