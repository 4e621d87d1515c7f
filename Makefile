# make repro   run the whole pipeline: install, measure, build the site. PYTHON=python3.11 selects the
#              interpreter; PROFILE=thorough measures more, PROFILE=ci only a small part
# make test    run the tests in the same environment: tests that measure one after another, the others
#              concurrently at idle priority
PYTHON ?= python3
BIN := .venv/bin
# With flock (util-linux), concurrent calls of make install and measure one after another.
FLOCK := $(shell command -v flock)
LOCK := $(if $(FLOCK),flock Makefile)
WAITING := waiting for another measurement in this directory
MEASURE := $(if $(FLOCK),flock --nonblock dvc.yaml true || echo "$(WAITING)"; exec flock --no-fork dvc.yaml,exec)
ifeq ($(FLOCK),)
.NOTPARALLEL:
else
MAKEFLAGS += --jobs=2
endif

.PHONY: repro test test-unmeasured test-measured
# The pipeline replaces its shell (exec), so that it receives the signal when make is killed.
repro: .venv/installed
	$(BIN)/repro claims
	PATH="$(CURDIR)/$(BIN):$$PATH"; export PATH; $(MEASURE) $(BIN)/repro pipeline $(PROFILE)
	$(BIN)/repro claims
	@echo "site: $(CURDIR)/results/site/index.html"

test: test-unmeasured test-measured

test-unmeasured: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile -m "not (testbed or alone)"

test-measured: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH"; export PATH; $(MEASURE) $(BIN)/python -m pytest -m "testbed or alone"

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv: 2 GB of disk, or 6 GB if torch includes the CUDA libraries"
	$(LOCK) sh -c "$(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet \
	  --constraint constraints.txt --editable '.[test]'"
	test -e .git || $(BIN)/dvc config --local core.no_scm true
	touch $@
