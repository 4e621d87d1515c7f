# make repro   the whole pipeline: install, measure, report (PYTHON=python3.11 chooses the interpreter)
# make test    the same environment, then the tests
PYTHON ?= python3
BIN := .venv/bin

.PHONY: repro test
repro: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dvc repro
	$(BIN)/repro claims
	@echo "report: $(CURDIR)/results/report.html"

test: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
