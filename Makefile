# All commands make their own virtual environment in .venv and install the project there.
# Or each of hundreds of processes compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready

.PHONY: quick repro docs test check lint types tests gpu clean help

help: ## Show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]' # what is imported is compiled then
	touch $(READY)

quick: $(READY) ## The table, attention statistics and overlays on the quickstart data, without studies
	PATH="$(BIN):$$PATH" dvc repro extract probe-cls probe attention segment
	$(BIN)/beyondcls report
	@echo "open report/index.html"

repro: $(READY) ## Run the whole pipeline on the quickstart data; prints the table and where the page is
	PATH="$(BIN):$$PATH" dvc repro
	@echo "open report/index.html"

docs: $(READY) ## The documentation, in build/docs; what is wrong with it is an error
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs build/docs
	@echo "open build/docs/index.html"

test: $(READY) ## What CI runs, with all its set-up
	$(MAKE) --jobs 2 --output-sync lint types docs
	$(MAKE) tests

check: lint types tests ## Formatter, linter, type checker, tests

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	PATH="$(BIN):$$PATH" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20

gpu: ## What this machine's GPU is worth: tests and benchmarks, under ten minutes, build/gpu/gpu.md; installs nothing
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu --out build/gpu

clean: ## Remove what the pipeline made
	rm -rf code recipes blocks few_shot geometry similarity norms scores correspondence retrieval tracking depth features receipts probes attention studies divergence localisation segmentation detection composed tables report
