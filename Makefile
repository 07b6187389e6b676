# What you need is installed into .venv by these targets. The machine brings make and Python 3.11+ with its venv module
# (Debian 12: apt install make python3-venv), nothing else. `make -s …` is the quiet form of every target.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Nothing younger than this is taken into a lock: most poisoned releases are found within days.
COOLDOWN ?= 7 days
# The extras of the small image: without litellm, embeddings on this machine and `compute`.
SMALL := telegram slack discord postgres sheets
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# bash, so that a pipeline fails with its first command (a shell of its own in no other way).
SHELL := bash
.SHELLFLAGS := -o pipefail -c
quiet := $(if $(findstring s,$(firstword -$(MAKEFLAGS))),--quiet)
pip := $(BIN)/python -m pip --disable-pip-version-check --no-input install --no-compile
# One line for every 25 packages instead of three for each; pip's errors stay, its remarks on the machine do not.
progress := 2> >(grep -v ^WARNING >&2) | awk '/^Collecting / && ++n % 25 == 0 { print "  " n " packages"; fflush() }'
compile := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --only-binary :all: --exclude-newer "$(COOLDOWN)"

.PHONY: help install install-dev init run test check types other-checks rewritten-tests messages faults fuzz mutants pictures bench bench-pages bench-recall format lock release docs clean

# Rewritten test modules are kept from one run to the next, and a command's own modules from one process to the next.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make run      the gateway with its web chat on http://127.0.0.1:8787"
	@echo "make init     asks for a model and your platforms, and writes the configuration"
	@echo "make test     every check and every test"
	@echo "make faults   every fault at every call of a turn, on the relay and on the platforms: hours"
	@echo "make fuzz     the property tests, with new examples on every run"
	@echo "make mutants  changes code in some modules and lists the changes that no test notices (docs/tests.md)"
	@echo "make check    ruff, mypy --strict, import-linter, dead links, names, translations"
	@echo "make messages    bring the translations up to date with the English sentences, mark outdated ones"
	@echo "make bench    the measurements"
	@echo "make bench-pages DATA=<folder>   how well web pages are read (docs/benchmarks.md)"
	@echo "make bench-recall DATA=locomo10.json   what memory finds, and how fast (docs/recall.md)"
	@echo "make install  what running needs into $(VENV), hash-locked, wheels only"
	@echo "make install-dev   what checks, tests and measurements need too"
	@echo "make format   let ruff put the code in order"
	@echo "make docs     the documentation as a site, in build/site; a dead link is an error"
	@echo "make release  sdist, wheel, lock, list of components and checksums of this commit, in dist/"
	@echo "make lock     write the locks anew (UPGRADE=--upgrade takes newer versions)"
	@echo "make clean    remove what these targets made"

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# A venv without pip is what a Debian without python3-venv leaves behind half made: it is made again.
$(VENV)/.installed: deploy/image.lock deploy/build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Parlour needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
	  || { rm -rf $(VENV); echo "the venv module is missing: apt install python3-venv" >&2; exit 2; }
	@echo "installing $$(cat deploy/image.lock deploy/build.lock | grep -c ==) locked packages into $(VENV); the first time takes a minute"
	@$(pip) --require-hashes --only-binary :all: -r deploy/image.lock -r deploy/build.lock $(progress)
	@$(pip) --quiet --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib gateway channels agent
	@touch $@
	@echo "installed; make init asks for a model and your platforms, make run needs neither"

$(VENV)/.installed-dev: $(VENV)/.installed requirements.lock
	@echo "installing what checks and tests need too: $$(grep -c == requirements.lock) locked packages in all"
	@$(pip) --require-hashes --only-binary :all: -r requirements.lock $(progress)
	@rm -f $(VENV)/lib/python3*/site-packages/a1_coverage.pth  # would run at every start; mutants need the library alone
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib
	@touch $@

init: install
	@$(BIN)/parlour init

run: install
	@$(BIN)/parlour run

# Two at a time: mypy, which writes at its end alone, takes as long as everything else.
beside := +@$(MAKE) --no-print-directory --jobs 2

test: install-dev
	$(beside) types other-checks rewritten-tests
	$(BIN)/python -m pytest

check: install-dev
	$(beside) types other-checks

types: install-dev
	$(BIN)/mypy

other-checks: install-dev
	$(BIN)/ruff check $(quiet) .
	$(BIN)/ruff format --check $(quiet) .
	$(BIN)/lint-imports $(if $(quiet),--no-logo)
	$(BIN)/python tests/links.py
	$(BIN)/python tests/names.py --check
	$(BIN)/python -m tests.messages --check

# Pytest rewrites the assertions of each new test module, ten seconds in a clean clone: here beside mypy. What cannot be
# collected is said by the run.
rewritten-tests: install-dev
	@$(BIN)/python -m pytest --collect-only -qq -n 0 >/dev/null 2>&1 || true

messages: install-dev
	$(BIN)/python -m tests.messages

# `make test` plays the calls that decide what a restart finds; this plays all of them. Each line can be run alone.
faults: install-dev
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.faults --platform telegram slack discord --mode kill_before reply_lost
	$(BIN)/python -m tests.faults --platform telegram slack discord --mode kill_before --unclean-stops 2
	CROSSINGS=full $(BIN)/python -m pytest --timeout 0 tests/faults/test_api_killed.py tests/faults/test_memory_killed.py \
		tests/faults/test_question_killed.py tests/faults/test_reminder_killed.py tests/faults/test_store_migration_killed.py \
		tests/faults/test_mcp_killed.py
	$(BIN)/python -m tests.faults --stage pairing claim cap alert remember correct undo new erase link unlink hand question reminder

# A failure prints a line with the example that failed, for a test of its own.
fuzz: install-dev
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile fuzz

# Half an hour. It works on a copy in mutants/, and a second run plays what has changed since. What survives is listed.
mutants: install-dev
	$(BIN)/mutmut run --max-children $$(nproc)
	$(BIN)/mutmut results

# The pictures of the docs, from the pages that the tests open. One that nothing shows any more stays as it is.
pictures: install-dev
	DOCS_IMAGES=1 $(BIN)/python -m pytest --timeout 300 tests/e2e/test_connect_model.py tests/e2e/test_console.py \
		tests/e2e/test_console_setup.py tests/e2e/test_page.py tests/e2e/test_page_conversations.py \
		tests/e2e/test_page_panels.py tests/e2e/test_page_recording.py tests/e2e/test_page_sources.py

bench: install-dev
	$(BIN)/python -m tests.benchmarks

# DATA holds the test pages of Mozilla's Readability: folders with source.html and expected.html.
bench-pages: install-dev
	$(BIN)/python -m tests.benchmarks.pages $(DATA)

# DATA is a path or an address of LoCoMo's file, without which the hand-written sets are measured alone; MODEL is a
# `local:<folder>`, by default the installed one.
bench-recall: install-dev
	$(BIN)/python -m tests.benchmarks.recall $(if $(DATA),--data $(DATA)) --model $(or $(MODEL),installed) --scale 10000 100000

format: install-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Four locks from one resolution: everything here, what runs in the image and in the small one, what builds our wheel there.
lock: install-dev
	$(compile) $(UPGRADE) --all-extras --group dev pyproject.toml -o requirements.lock
	$(compile) --all-extras --constraint requirements.lock pyproject.toml -o deploy/image.lock
	$(compile) $(addprefix --extra ,$(SMALL)) --constraint requirements.lock pyproject.toml -o deploy/small.lock
	$(compile) --constraint requirements.lock --group pyproject.toml:build -o deploy/build.lock

# Its makers' notices are about other programs.
docs: install-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The same commit gives the same bytes: times inside are the commit's.
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: install-dev
	@test -z "$$(git status --porcelain)" || { echo "a release is of a commit: commit or stash first" >&2; exit 2; }
	@grep -q '^## $(VERSION) ' CHANGELOG.md || { echo "CHANGELOG.md says nothing of $(VERSION) (pyproject.toml)" >&2; exit 2; }
	@rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml --output-file dist/parlour-$(VERSION).cdx.json deploy/image.lock
	$(BIN)/cyclonedx-py environment $(VENV) | $(BIN)/python deploy/component_list.py dist/parlour-$(VERSION).cdx.json
	@cp deploy/image.lock dist/parlour-$(VERSION).lock
	@cd dist && sha256sum parlour-* > SHA256SUMS && cat SHA256SUMS

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist mutants
