# One front door. Each target sets up what it needs in .venv by itself; nothing else on the machine is touched.
# Needed: Python 3.11 or newer with venv, make, and a package index that pip knows.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
PY := $(VENV)/bin/python
# Tests run in this many processes.
JOBS ?= 2
# Further arguments for pytest: make test ARGS="tests/core -k settle"
ARGS ?=

# The first interpreter that is new enough and can make a virtual environment.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	if $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)

PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-input --require-hashes

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-20s %s\n", $$1, $$2 }'

.PHONY: demo
demo: $(VENV)/.run ## Watch crashed sessions being explained, settled and requeued (SQLite, no other set-up)
	@$(PY) examples/demo.py

.PHONY: test
test: $(VENV)/.test ## Run all tests, on SQLite and on a real PostgreSQL
	@$(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

.PHONY: check
check: lint types contracts test ## Everything that CI runs: lint, types, import contracts, docs and all tests

.PHONY: lint
lint: $(VENV)/.check ## Check style and formatting
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

.PHONY: format
format: $(VENV)/.check ## Mend style and formatting
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

.PHONY: types
types: $(VENV)/.check ## Check types, strictly
	@$(PY) -m mypy $(wildcard reconciler migrations tests examples/*.py)

.PHONY: contracts
contracts: $(VENV)/.check ## Check who may import whom
	@$(VENV)/bin/lint-imports --no-cache

.PHONY: bench
bench: $(VENV)/.test ## Measure this machine (takes minutes; numbers go to standard output)
	@$(PY) -m tests.bench $(ARGS)

.PHONY: chaos-fast
chaos-fast: $(VENV)/.test ## Nine cells of kills and outages, judged from ledgers (a quarter of an hour; no part of CI)
	@$(PY) -m tests.chaos --fast $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.test ## The nine cells at full length, each then with its fault put in, and the machine's faults (four hours)
	@$(PY) -m pytest tests/chaos/test_faults.py
	@$(PY) -m tests.chaos $(ARGS)
	@$(PY) -m tests.chaos --fast --control $(ARGS)

.PHONY: crash-points
crash-points: $(VENV)/.test ## Kill every operation at every statement, and its recovery too (tens of minutes)
	@$(PY) -m tests.proof.crash $(ARGS)

# How many deaths by SIGKILL, and where the results are added up.
CRASH_RUNS ?= 20000
CRASH_RESULTS ?= crash-runs.json
.PHONY: crash-runs
crash-runs: $(VENV)/.test ## Random histories with random deaths (CRASH_RUNS=20000 on each database; hours for many)
	@$(PY) -m tests.proof.random_runs --kind sqlite --runs $(CRASH_RUNS) --seconds 86400 --add-to $(CRASH_RESULTS)
	@$(PY) -m tests.proof.random_runs --kind postgresql --runs $(CRASH_RUNS) --seconds 86400 --add-to $(CRASH_RESULTS)

.PHONY: plans-full
plans-full: $(VENV)/.test ## Check the plans of the operators' questions on a million submissions (takes minutes)
	@RECONCILER_TEST_ROWS=1000000 $(PY) -m pytest tests/queries/test_plans.py $(ARGS)

# How many states of each configuration at most: what is stopped there says so.
MODEL_STATES ?= 3000000
.PHONY: model-full
model-full: $(VENV)/.test ## Explore the exhaustive model with its full constants (hours; gigabytes)
	@$(PY) -m tests.proof.model.explore --full --states $(MODEL_STATES) $(ARGS)

.PHONY: damage
damage: $(VENV)/.test ## Break session files in every way and hold what comes of it (ARGS="--cases 20000")
	@$(PY) -m tests.chaos.damage $(ARGS)

# Executions of the fuzzer; what it keeps between runs stands in the folder.
FUZZ_RUNS ?= 1000000
FUZZ_FOLDER ?= .fuzz
.PHONY: fuzz
fuzz: $(VENV)-fuzz/.ready ## Fuzz the importers, guided by coverage (a million executions)
	@mkdir -p $(FUZZ_FOLDER)/corpus
	@cp examples/sessions/*.jsonl $(FUZZ_FOLDER)/corpus/
	@PYTHONPATH=. $(VENV)-fuzz/bin/python tests/importers/fuzz_importers.py -runs=$(FUZZ_RUNS) -max_len=16384 \
		-timeout=20 -artifact_prefix=$(FUZZ_FOLDER)/ $(FUZZ_FOLDER)/corpus

$(VENV)-fuzz/.ready: requirements/run.txt requirements/fuzz.txt
	@test -x $(VENV)-fuzz/bin/python || $(PYTHON) -m venv $(VENV)-fuzz
	@$(VENV)-fuzz/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes \
		-r requirements/run.txt -r requirements/fuzz.txt
	@touch $@

# The core's own tests alone must reach every branch of it.
.PHONY: core-coverage
core-coverage: $(VENV)/.coverage ## Branch coverage of the core by its own tests: below 100 % fails
	@$(PY) -m tests.proof.core_coverage

$(VENV)/.coverage: requirements/coverage.txt $(VENV)/.test
	@$(PIP_INSTALL) --no-deps --only-binary :all: -r requirements/coverage.txt
	@touch $@

.PHONY: core-mutants
core-mutants: $(VENV)/.test ## Mutate classifier and policy; every survivor must be explained (tens of minutes)
	@$(PY) -m tests.proof.core_mutants $(ARGS)

.PHONY: migration-baseline
migration-baseline: $(VENV)/.check ## Write the first migration anew from the models (until the first release)
	@$(PY) -m migrations.regenerate

.PHONY: clean
clean: ## Remove everything that these targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: a stamp per level, made anew when its lock or the packaging changes ---------------------------------------

$(VENV)/.venv:
	@if [ -z "$(PYTHON)" ]; then echo "no Python 3.11 or newer with venv: install one, or name it with PYTHON=..." >&2; exit 1; fi
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/.venv
	@echo "setting up $(VENV) to run"
	@$(PIP_INSTALL) -r requirements/run.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation --no-index --editable .
	@touch $@

# PostgreSQL for the tests: the machine's own, else the binaries of a wheel.
$(VENV)/.test: requirements/test.txt requirements/postgresql.txt $(VENV)/.run
	@echo "setting up $(VENV) to test"
	@$(PIP_INSTALL) -r requirements/test.txt
	@if [ -z "$${RECONCILER_TEST_WITHOUT_POSTGRESQL:-}" ] && ! $(PY) -m tests.support.postgresql >/dev/null 2>&1; then \
		echo "no PostgreSQL server on this machine: taking one from a wheel"; \
		$(PIP_INSTALL) --no-deps --only-binary :all: -r requirements/postgresql.txt; fi
	@touch $@

$(VENV)/.check: requirements/check.txt $(VENV)/.test
	@echo "setting up $(VENV) to check"
	@$(PIP_INSTALL) -r requirements/check.txt
	@touch $@

# --- locks: hashes and versions, no address of any index; needs uv ----------------------------------------------------

UV ?= uv
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links
.PHONY: lock
lock: ## Write the locked requirements anew (UPGRADE=--upgrade for newer versions)
	$(LOCK) $(UPGRADE) pyproject.toml --group build -o requirements/run.txt
	$(LOCK) $(UPGRADE) pyproject.toml --group build --group test --extra postgres --extra mcp --extra openai-agents \
		-c requirements/run.txt -o requirements/test.txt
	$(LOCK) $(UPGRADE) pyproject.toml --group build --group test --group lint --extra postgres --extra mcp --extra openai-agents \
		-c requirements/test.txt -o requirements/check.txt
	$(LOCK) $(UPGRADE) --no-deps requirements/postgresql.in -o requirements/postgresql.txt
