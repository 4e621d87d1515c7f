PYTHON ?= python3

.venv/bin/python:
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet -e '.[test]'

.PHONY: test
test: .venv/bin/python
	.venv/bin/python -m pytest
