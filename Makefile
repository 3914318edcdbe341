# The one door. Every target sets up what it needs: Python 3.11 and make are enough to start.

PYTHON     ?= python3
VENV       ?= .venv
BENCH_VENV ?= .venv-bench
FRAMEWORKS_VENV ?= .venv-frameworks
LITELLM_VENV ?= .venv-litellm
# Where the coding agents are: make test-agents AGENTS=DIR runs those of another directory.
AGENTS     ?= .agents
# Where Prometheus is, unless it is installed.
PROMETHEUS ?= .prometheus
WORKERS    ?= 2
ROUNDS     ?= 200
SIGNALS    ?= 100
STEPS      ?= 3000
EFFECTS    ?= 300
CUTS       ?= 40
FAULTS     ?= 30
DAMAGES    ?= 60
FLIPS      ?= 1000
CHECKPOINTS ?= 20
COLLECTIONS ?= 1000
SCALE      ?= 10
# Passed on: make test ARGS="-k journal", make bench ARGS=--quick, make crash ROUNDS=1000.
ARGS       ?=

# Tests that try harder in make crash than in make test: see tests/scale.py.
HARDER := tests/properties tests/crash tests/unit/workspace/test_beneath.py tests/unit/workspace/capture/test_index.py

READY       := $(VENV)/.ready
BENCH_READY := $(BENCH_VENV)/.ready
FRAMEWORKS_READY := $(FRAMEWORKS_VENV)/.ready
LITELLM_READY := $(LITELLM_VENV)/.ready

PIP_ENV := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
INSTALL  = $(PIP_ENV) $(1)/bin/python -m pip install -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-agents test-frameworks check format bench crash clean

help: ## show the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)$$/make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target does; do \
		printf '  %-14s %s\n' "$$target" "$$does"; done

demo: $(READY) ## the whole story; the first time it sets everything up, in about a minute
	@$(VENV)/bin/mulligan demo $(ARGS)

test: $(READY) ## the whole test suite
	@$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-agents: $(READY) $(AGENTS)/.ready ## real coding agents, installed by npm, with a model on loopback
	@MULLIGAN_TEST_AGENTS=$(AGENTS) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -rs tests/agents $(ARGS)

test-frameworks: $(FRAMEWORKS_READY) $(LITELLM_READY) $(PROMETHEUS)/.ready ## the adapters, with the real frameworks and their own suites
	@MULLIGAN_TEST_FRAMEWORKS=1 MULLIGAN_TEST_PROMETHEUS=$(abspath $(PROMETHEUS))/usr/bin \
		MULLIGAN_TEST_LITELLM="$$(test -e $(LITELLM_READY) && echo $(abspath $(LITELLM_VENV))/bin/python)" \
		$(FRAMEWORKS_VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -rs tests/frameworks $(ARGS)

check: $(READY) ## format, lint and types, changing nothing
	@$(VENV)/bin/ruff format --check --quiet . || { echo "make format puts the files above in shape" >&2; exit 1; }
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy

format: $(READY) ## put the code in shape
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

bench: $(BENCH_READY) ## every benchmark, with the peers in the same run
	@$(BENCH_VENV)/bin/python -m benchmarks $(ARGS)

crash: $(READY) ## kill, cut the power, fail system calls and damage files at random; ROUNDS, SIGNALS, STEPS, CUTS, FAULTS, DAMAGES, FLIPS, SCALE
	@$(VENV)/bin/python -m mulligan.testing.crash --rounds $(ROUNDS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.collector --rounds $(COLLECTIONS) $(ARGS)
	@$(VENV)/bin/python -m tests.crash.damage --kinds $(ROUNDS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.chaos --signals $(SIGNALS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.effects_chaos --steps $(STEPS) --effects $(EFFECTS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.power --cuts $(CUTS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.syscall_faults --faults $(FAULTS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.damage --rounds $(DAMAGES) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.bitrot --rounds $(FLIPS) $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.bitrot --rounds $(FLIPS) --damages 5 $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.bitrot --rounds 20 --journal 64 --only data.mdb $(ARGS)
	@$(VENV)/bin/python -m mulligan.testing.neighbours --checkpoints $(CHECKPOINTS) $(ARGS)
	@MULLIGAN_TEST_SCALE=$(SCALE) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal --timeout 7200 $(HARDER)

clean: ## remove everything made by make
	@rm -rf $(VENV) $(BENCH_VENV) .agents $(FRAMEWORKS_VENV) $(LITELLM_VENV) .prometheus .bench build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	@$(call INSTALL,$(VENV)) -c constraints.txt hatchling
	@$(call INSTALL,$(VENV)) -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# The peers bring a hundred megabytes that no test needs, so they have a place of their own.
$(BENCH_READY): pyproject.toml constraints.txt constraints-bench.txt
	$(call make_venv,$(BENCH_VENV))
	@$(call INSTALL,$(BENCH_VENV)) -c constraints.txt hatchling
	@$(call INSTALL,$(BENCH_VENV)) -c constraints-bench.txt --no-build-isolation -e '.[bench]'
	@touch $@

# The frameworks that adapters are tested with: their dependencies are nobody else's.
$(FRAMEWORKS_READY): pyproject.toml constraints.txt constraints-frameworks.txt
	$(call make_venv,$(FRAMEWORKS_VENV))
	@$(call INSTALL,$(FRAMEWORKS_VENV)) -c constraints.txt hatchling
	@$(call INSTALL,$(FRAMEWORKS_VENV)) -c constraints-frameworks.txt --no-build-isolation -e '.[dev,frameworks]'
	@touch $@

# litellm needs versions that other frameworks exclude. Where it cannot be installed, its tests are
# skipped, and say so; the next make tries again.
$(LITELLM_READY): pyproject.toml constraints.txt constraints-litellm.txt
	$(call make_venv,$(LITELLM_VENV))
	@if $(call INSTALL,$(LITELLM_VENV)) -c constraints.txt hatchling && \
		$(call INSTALL,$(LITELLM_VENV)) -c constraints-litellm.txt --no-build-isolation litellm mcp -e .; \
		then touch $@; else echo "LITELLM COULD NOT BE INSTALLED: its tests are skipped" >&2; fi

# Without a lock file, which would name hosts. Where npm or its registry is missing, the tests are
# skipped, and say so; the next make tries again. By content: a new clone has a new package.json.
$(AGENTS)/.ready: tests/agents/package.json
	@if test -e $@ && cmp -s tests/agents/package.json $(AGENTS)/package.json; then touch $@; exit; fi; \
	echo "installing the coding agents in $(AGENTS) (once)"; \
	mkdir -p $(AGENTS) && cp tests/agents/package.json $(AGENTS)/package.json && \
	if (cd $(AGENTS) && npm install --no-package-lock --no-audit --no-fund --fetch-retries=0 --loglevel=error); then touch $@; else \
		echo "THE CODING AGENTS COULD NOT BE INSTALLED: their tests are skipped" >&2; fi

# From Debian's package, unpacked and not installed. Where there is none, the tests are skipped, and
# say so; the next make tries again.
$(PROMETHEUS)/.ready:
	@mkdir -p $(PROMETHEUS)
	@if command -v prometheus promtool >/dev/null; then touch $@; else \
		echo "fetching Prometheus into $(PROMETHEUS) (once)"; \
		if (cd $(PROMETHEUS) && apt-get download -qq -o APT::Sandbox::User=root prometheus && \
			dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb); then touch $@; else \
			echo "PROMETHEUS COULD NOT BE FETCHED: its tests are skipped" >&2; fi; fi

# Begins from nothing, so that an interrupted set-up cannot leave half an environment behind.
define make_venv
@command -v "$(PYTHON)" >/dev/null || { \
	echo "Mulligan needs Python 3.11 or later, and there is no $(PYTHON): try make PYTHON=/path/to/python3" >&2; exit 1; }
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Mulligan needs Python 3.11 or later, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1 | head -n 1): try make PYTHON=python3.11" >&2; exit 1; }
@echo "setting up $(1) (once)"
@rm -rf "$(1)"
@"$(PYTHON)" -m venv "$(1)" || { \
	echo "$(PYTHON) cannot make a virtual environment: install its venv module (python3-venv on Debian)" >&2; exit 1; }
endef
