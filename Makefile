PYTHON ?= python3
JOBS ?= 2
EXAMPLES ?= 200
SEED ?= $(shell date +%j)
UV_VERSION := 0.13.7

BIN := .venv/bin
UV := UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-quick test check static coverage sim chaos bench docs audit sbom

help:
	@echo "make setup        create .venv with everything locked in uv.lock"
	@echo "make demo         run the demo on the embedded default, and leave its service running until Ctrl-C"
	@echo "make demo-quick   the same without pauses and questions; ends by itself, and says whether all went well"
	@echo "make test         every check and every test"
	@echo "make check        format, lint, types, imports, fast tests"
	@echo "make sim          simulate faults under seeds"
	@echo "make chaos        kill processes at every commit, and again while others recover; then at random, under load;"
	@echo "                  ask the service what its OpenAPI document allows, and what it does not"
	@echo "make bench        measure, on this machine"
	@echo "make docs         write the generated pages again"
	@echo "make audit        ask the advisory service for known flaws of what is locked; needs the internet"
	@echo "make sbom         write sbom.json: what a release is made of, as CycloneDX"

setup: $(READY)

$(READY): pyproject.toml uv.lock
	@command -v $(PYTHON) >/dev/null || { echo "'$(PYTHON)' is not on the PATH: install Python 3.11 or newer, or name one: make setup PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Tenuto needs Python 3.11 or newer, and %s is %d.%d. Name a newer one: make setup PYTHON=python3.12" % (sys.executable, v[0], v[1]))'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { echo "'$(PYTHON) -m venv' failed. Debian and Ubuntu keep it in the package python3-venv." >&2; exit 1; }
	@$(BIN)/uv --version 2>/dev/null | grep -q '^uv $(UV_VERSION)' || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(UV) sync --locked --all-extras
	@touch $@

demo: setup
	$(BIN)/python -m examples.demo

demo-quick: setup
	$(BIN)/python -m examples.demo --quick

static: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

check: static
	$(BIN)/pytest -n $(JOBS) -m "not slow"

coverage: setup
	$(BIN)/pytest -n $(JOBS) -m "not slow" -k "kernel or memory" --cov --cov-report=term $(wildcard tests/kernel tests/contract)

test: static coverage
	$(BIN)/pytest -n $(JOBS)

sim: setup
	$(BIN)/python -m tests.simulation
	$(BIN)/python -m tests.simulation --planted
	$(BIN)/python -m tests.hostile
	$(BIN)/python -m tests.hostile --planted
	$(BIN)/python -m tests.differential

chaos: setup
	$(BIN)/python -m tests.crash
	$(BIN)/python -m tests.chaos
	$(BIN)/python -m tests.power
	FUZZ_EXAMPLES=$(EXAMPLES) FUZZ_SEED=$(SEED) $(BIN)/pytest tests/service/test_openapi.py -k schemathesis

bench: setup
	$(UV) sync --locked --all-extras --group bench
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python -m docs.generate

audit: setup
	@$(UV) audit --locked --no-dev --preview-features audit-command || { \
		code=$$?; echo "Not clean, or not audited: where the advisory service (osv.dev) cannot be reached, nothing was looked up." >&2; exit $$code; }

sbom: setup
	$(UV) export --locked --no-dev --all-extras --format cyclonedx1.5 --output-file sbom.json --quiet
