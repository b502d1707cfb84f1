# Every target makes its own virtual environment from the hashed locks in requirements/.
# Another interpreter gets an environment of its own: make test PYTHON=python3.12
PYTHON ?= python3
JOBS ?= 3
MINUTES ?= 5
COVERAGE ?=
PYTEST_ARGS ?=
LOCK_ARGS ?=

SUFFIX := $(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
VENV := .venv$(SUFFIX)
BENCH_VENV := .venv-bench$(SUFFIX)
LOCK_VENV := .venv-lock$(SUFFIX)
RUN := $(VENV)/bin/python -m
AGENTS := .npm-agents
LANGUAGE_SERVER := .npm-language-server
HAS_BROWSER := for name in chromium chromium-browser google-chrome; do command -v $$name && break; done >/dev/null

INSTALL := -m pip --disable-pip-version-check install --quiet
# The locks are whole. Left to look for itself, pip finds a newer release for a name with an extra (`coverage[toml]`),
# and then refuses it, because the lock has no hash for it.
LOCKED := $(INSTALL) --no-deps --require-hashes -r
# What it builds with is in the lock too, so that nothing is fetched without a hash.
EDITABLE := $(INSTALL) --no-build-isolation --no-deps -e .

# Compiled modules are kept, whatever the shell says: without them each of some thousand processes compiles its own.
unexport PYTHONDONTWRITEBYTECODE

SPREAD := -n $(JOBS) --dist worksteal
PURE := */agentos/dag/*,*/agentos/machine/*
TYPED := src tests $(foreach folder,bench tools,$(if $(wildcard $(folder)/*.py),$(folder)))
COMPILE := $(LOCK_VENV)/bin/pip-compile --quiet --no-config --no-header --no-emit-options --generate-hashes \
	--strip-extras --allow-unsafe --newline lf $(LOCK_ARGS)

.DELETE_ON_ERROR:
.PHONY: help demo test coverage test-rest test-all agents agents-if-possible language-server language-server-if-possible \
	browser browser-if-possible bubblewrap bubblewrap-if-possible lint docs schemas recording matrix soak overnight \
	shots mutants langgraph-suite bench lock preflight clean distclean

help: ## show this list (the default)
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.core ## install, then show an agent being killed in the middle of an edit, and resumed
	@$(RUN) agentos demo

test: $(VENV)/.test ## install, and try every promise once: about five minutes (PYTEST_ARGS=..., JOBS=3, COVERAGE=yes)
	$(RUN) pytest $(SPREAD) -m 'not full' \
		$(if $(COVERAGE),--cov --cov-report= --cov-fail-under=0,--hypothesis-profile=quick) $(PYTEST_ARGS)
	$(if $(COVERAGE),@$(MAKE) --no-print-directory coverage)

coverage: $(VENV)/.test ## what `make test COVERAGE=yes` measured: is it enough? (measuring takes half as long again)
	$(RUN) coverage report
	$(RUN) coverage report --include='$(PURE)' --fail-under=90
	@$(RUN) coverage json --quiet --include='$(PURE)' --fail-under=0 -o - | $(VENV)/bin/python -c 'import json, sys; \
		taken = json.load(sys.stdin)["totals"]["percent_branches_covered"]; \
		print(f"branches taken in dag/ and machine/: {taken:.1f} % (at least 90)"); sys.exit(taken < 90)'

test-rest: $(VENV)/.test $(addsuffix -if-possible,browser bubblewrap agents language-server) ## what `make test` leaves out: every combination, programs from npm
	$(RUN) pytest $(SPREAD) -m full $(PYTEST_ARGS)

test-all: ## every test there is: `make test`, then `make test-rest`
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

agents: $(AGENTS)/.installed ## install the agents that tests/agents runs, from npm (1.3 GB, half a minute)

language-server: $(LANGUAGE_SERVER)/.installed ## install the YAML language server that tests/editor asks, from npm (25 MB)

browser: ## install the browser that tests of the page look through: Debian's chromium (as root)
	@$(HAS_BROWSER) || { apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; }

bubblewrap: ## install what walls tasks in (`sandbox: worktree`), so that escapes are tried: Debian's bubblewrap (as root)
	@command -v bwrap >/dev/null || \
		{ apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends bubblewrap; }

# `make test-rest` begins with these.
bubblewrap-if-possible: ## the same where this user may install it, else a word that it is missing
	@command -v bwrap >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && $(MAKE) --no-print-directory bubblewrap; } || \
		echo 'NO BUBBLEWRAP: no escape from a sandbox is tried, and the summary says so. As root: make bubblewrap' >&2

browser-if-possible: ## the same where this user may install it, else a word that it is missing
	@$(HAS_BROWSER) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && $(MAKE) --no-print-directory browser; } || \
		echo 'NO BROWSER: nothing that is seen in one is tested, and the summary says so. As root: make browser' >&2

agents-if-possible language-server-if-possible: %-if-possible:
	@{ command -v node && command -v npm; } >/dev/null && $(MAKE) --no-print-directory $* || \
		echo 'Not installed from npm: $*. Tests that need it are skipped, and the summary names them.' >&2

lint: $(VENV)/.lint ## ruff (rules and format), mypy --strict, the arrows between the layers
	@status=0; \
	for check in 'python -m ruff check .' 'python -m ruff format --check .' 'python -m mypy $(TYPED)' \
			'lint-imports --no-logo'; do \
		echo "$$check"; $(VENV)/bin/$$check || status=1; \
	done; exit $$status

docs: $(VENV)/.core ## write anew from the code: docs/cli.md, the settings of tasks, the schema of workflow files
	@$(VENV)/bin/python tools/write_docs.py

schemas: $(VENV)/.core ## write the JSON Schemas of workflow files and of what commands print into build/schemas/
	@$(VENV)/bin/python tools/write_docs.py --schemas build/schemas

matrix: $(VENV)/.test agents-if-possible ## the whole kill matrix: every pass of every crash point, on both stores (long)
	AGENTOS_MATRIX=full $(RUN) pytest $(SPREAD) tests/crash tests/agents tests/issue/test_kill_matrix.py \
		tests/issue/test_parallel.py tests/cluster tests/langgraph/test_processes.py $(PYTEST_ARGS)

soak: $(VENV)/.test ## random kills and resumes for MINUTES=5, then drivers and a PostgreSQL server in trouble
	$(VENV)/bin/python tests/crash/soak.py --minutes $(MINUTES)
	AGENTOS_MATRIX=full $(RUN) pytest tests/crash/test_postgres_chaos.py $(PYTEST_ARGS)

overnight: $(VENV)/.test agents-if-possible ## agents in trouble for MINUTES=5: kills, 429s, reboots; then the report of the morning, and what was paid
	$(VENV)/bin/python tests/agents/overnight.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

recording: $(VENV)/.test ## run the demo in a terminal and write docs/demo.svg from what it shows
	@$(VENV)/bin/python tools/record_demo.py

shots: $(VENV)/.test ## show the page in a browser, over runs made for it, and write docs/shots/ (make browser)
	@$(VENV)/bin/python tests/web/shots.py

mutants: $(VENV)/.test ## break promises on purpose, one at a time, and see that a test notices (MUTANTS="name …", long)
	$(VENV)/bin/python tools/mutate.py $(MUTANTS)

langgraph-suite: $(VENV)/.test ## LangGraph's own tests, from the index, over our saver (SUITE_ARGS="-n 2")
	$(VENV)/bin/python tools/langgraph_suite.py .venv-langgraph $(SUITE_ARGS)

bench: $(BENCH_VENV)/.bench ## measure ourselves against raw SQLite, asyncio, LangGraph and DBOS (ONLY=chain,steps)
	$(BENCH_VENV)/bin/python -m bench $(if $(ONLY),--only $(ONLY))

lock: $(LOCK_VENV)/.lock ## renew requirements/*.txt (LOCK_ARGS=--upgrade for newer releases)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
		echo 'Locks are made with the oldest Python we support: make lock PYTHON=python3.11' >&2; exit 1; }
	$(COMPILE) -o requirements/lock.txt requirements/lock.in
	$(COMPILE) --build-deps-for editable -o requirements/core.txt pyproject.toml
	$(COMPILE) -c requirements/core.txt --build-deps-for editable --extra test -o requirements/test.txt pyproject.toml
	$(COMPILE) -c requirements/test.txt --extra lint -o requirements/lint.txt pyproject.toml
	$(COMPILE) --build-deps-for editable --extra bench -o requirements/bench.txt pyproject.toml

preflight: ## check that the machine has git, Python 3.11 and its venv module
	@status=0; missing() { echo "$$1" >&2; echo "  On Debian: apt-get install $$2" >&2; status=1; }; \
	command -v git >/dev/null || missing 'git is missing.' git; \
	if ! command -v $(PYTHON) >/dev/null; then \
		missing '$(PYTHON) is missing.' '$(notdir $(PYTHON)) $(notdir $(PYTHON))-venv'; \
	elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		missing "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
			'python3 python3-venv (Debian 12 or newer), or name another: make ... PYTHON=python3.12'; \
	elif ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		missing '$(PYTHON) has no venv module (ensurepip).' '$(notdir $(PYTHON))-venv'; \
	fi; exit $$status

clean: ## remove caches, builds and measurements; environments stay
	rm -rf build dist htmlcov src/*.egg-info .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## clean, and remove the environments and what was installed from npm
	rm -rf .venv .venv-* $(AGENTS) $(LANGUAGE_SERVER)

# pip is the last thing venv installs: one that was interrupted is made again.
%/bin/pip: | preflight
	$(PYTHON) -m venv $*

$(VENV)/.core: requirements/core.txt pyproject.toml | $(VENV)/bin/pip
	$(VENV)/bin/python $(LOCKED) requirements/core.txt
	$(VENV)/bin/python $(EDITABLE)
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.core
	$(VENV)/bin/python $(LOCKED) requirements/test.txt
	@touch $@

$(VENV)/.lint: requirements/lint.txt $(VENV)/.test
	$(VENV)/bin/python $(LOCKED) requirements/lint.txt
	@touch $@

$(BENCH_VENV)/.bench: requirements/bench.txt pyproject.toml | $(BENCH_VENV)/bin/pip
	$(BENCH_VENV)/bin/python $(LOCKED) requirements/bench.txt
	$(BENCH_VENV)/bin/python $(EDITABLE)
	@touch $@

$(LOCK_VENV)/.lock: requirements/lock.txt | $(LOCK_VENV)/bin/pip
	$(LOCK_VENV)/bin/python $(LOCKED) requirements/lock.txt
	@touch $@

# Not `npm ci`: it refuses a lock that lacks the packages of platforms which the registry does not offer.
$(AGENTS)/.installed: tests/agents/package.json tests/agents/package-lock.json
$(LANGUAGE_SERVER)/.installed: tests/editor/package.json tests/editor/package-lock.json
$(AGENTS)/.installed $(LANGUAGE_SERVER)/.installed:
	@mkdir -p $(@D)
	@cp $^ $(@D)
	npm install --prefix $(@D) --no-audit --no-fund --no-save --loglevel=error
	@touch $@
