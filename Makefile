# make repro   the whole pipeline: install, measure, site (PYTHON=python3.11 chooses the interpreter,
#              PROFILE=thorough measures more, PROFILE=ci hardly anything)
# make test    the same environment, then the tests: those that measure one by one, the others beside
#              them, in the time that they leave
PYTHON ?= python3
BIN := .venv/bin
# Two of them at once install, and measure, one after the other, where there is flock (util-linux).
FLOCK := $(shell command -v flock)
LOCK := $(if $(FLOCK),flock Makefile)
WAITING := what measures in this folder is waited for
MEASURE := $(if $(FLOCK),flock --nonblock dvc.yaml true || echo "$(WAITING)"; exec flock --no-fork dvc.yaml,exec)
ifeq ($(FLOCK),)
.NOTPARALLEL:
else
MAKEFLAGS += --jobs=2
endif

.PHONY: repro test test-unmeasured test-measured
# The pipeline takes the place of its shell, so that it hears when make is killed.
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
	@echo "installing into .venv: it takes 2 GB of disk, and 6 GB where torch brings CUDA's libraries"
	$(LOCK) sh -c "$(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet \
	  --constraint constraints.txt --editable '.[test,compression]'"
	test -e .git || $(BIN)/dvc config --local core.no_scm true
	touch $@
