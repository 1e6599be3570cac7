# `make run`, `make test` and the rest work from a fresh clone: they create a virtual environment in .venv and install into it.
# What is installed follows pyproject.toml; a second call installs nothing. An environment that somebody else has set up is used
# as it is: `make test READY=DIR`, which is what the tasks of pixi do.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)

ifdef READY
bin = $(READY)/bin
installed =
else
bin = $(VENV)/bin
installed = $(VENV)/installed$(1)
endif

.PHONY: run test test-quick test-gpu bench report docs lint fmt

run: $(call installed)
	$(bin)/python -m harness run kernel6

test: $(call installed,-test)
	$(bin)/python -m pytest -n 2 --dist loadgroup --quiet -m 'not nightly'

test-quick: $(call installed,-test)
	$(bin)/python -m pytest -n 2 --dist loadgroup --quiet -m 'not slow and not nightly'

test-gpu: $(call installed,-gpu)
	$(bin)/python -m pytest -m gpu --quiet

bench: $(call installed,-report)
	$(bin)/python -m harness bench

report: $(call installed,-report)
	$(bin)/python -m harness report

# The pages run the harness while they are built.
docs: $(call installed,-docs)
	PATH="$(abspath $(bin)):$$PATH" NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --strict

# mblack is what `mojo format` runs, with --preview; only mblack can check without writing.
lint: $(call installed,-dev)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mblack --check --quiet --preview --line-length 120 kernels
	$(bin)/mypy
	$(bin)/lint-imports

fmt: $(call installed,-dev)
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/mojo format --quiet --line-length 120 kernels

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 was found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $(VENV)/bin/python; exit 1; }

# pip shows its progress on a terminal; elsewhere one line says what takes so long. [test] holds what bench and report need.
$(VENV)/installed-report: extras = [bench,report,sweep]
$(VENV)/installed-test: extras = [test]
$(VENV)/installed-gpu: extras = [test,torch]
$(VENV)/installed-dev: extras = [test,dev]
$(VENV)/installed-docs: extras = [docs]
$(VENV)/installed $(foreach job,report test gpu dev docs,$(VENV)/installed-$(job)): pyproject.toml emugpu/pyproject.toml | $(VENV)/bin/python
	@echo "Installing .$(extras) into $(VENV); the first time this takes some minutes."
	@$(VENV)/bin/python -m pip --disable-pip-version-check install $$([ -t 1 ] || echo --quiet) --editable ./emugpu --editable '.$(extras)'
	@touch $@ $(VENV)/installed $(if $(findstring test,$(extras)),$(VENV)/installed-report $(VENV)/installed-test)
