# `make run`, `make test` and the rest work from a fresh clone: they create a virtual environment in .venv and install into it.
# What is installed follows pyproject.toml; a second call installs nothing.

VENV ?= .venv
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(if $(call usable,$(p)),$(p))))
usable = $(shell $(1) -c 'import sys; print("ok" if (3, 11) <= sys.version_info < (3, 14) else "")' 2>/dev/null)

PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: run test test-quick test-gpu bench report docs lint fmt

run: $(VENV)/installed
	$(VENV)/bin/python -m harness run kernel6

test: $(VENV)/installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist loadgroup --quiet

test-quick: $(VENV)/installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist loadgroup --quiet -m 'not slow'

test-gpu: $(VENV)/installed-gpu
	$(VENV)/bin/python -m pytest -m gpu --quiet

bench: $(VENV)/installed-report
	$(VENV)/bin/python -m harness bench

report: $(VENV)/installed-report
	$(VENV)/bin/python -m harness report

# The pages run the harness while they are built.
docs: $(VENV)/installed-docs
	PATH="$(abspath $(VENV))/bin:$$PATH" NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mblack --check --quiet --preview --line-length 120 kernels
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

fmt: $(VENV)/installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/mojo format --quiet --line-length 120 kernels

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 was found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $(VENV)/bin/python; exit 1; }

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable .
	@touch $@

$(VENV)/installed-report: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[bench,report,sweep]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-test: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[test]'
	@touch $@ $(VENV)/installed $(VENV)/installed-report

$(VENV)/installed-gpu: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[test,torch]'
	@touch $@ $(VENV)/installed $(VENV)/installed-report $(VENV)/installed-test

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[test,dev]'
	@touch $@ $(VENV)/installed $(VENV)/installed-report $(VENV)/installed-test

$(VENV)/installed-docs: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[docs]'
	@touch $@ $(VENV)/installed
