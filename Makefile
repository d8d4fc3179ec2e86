# perfctl: 'make' lists what there is.
VENV ?= .venv
PYTHON ?= python3
BATCHES ?= 16,32,64,128,256
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test proofs check coverage guard guard-quick docs accuracy algorithms silicon bench faults fuzz mutate verdicts format clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 	/p' $(MAKEFILE_LIST)

demo: $(VENV)/.torch ## Install, run the batch sweep on this machine, write its report and that of the V100 study
	sh scripts/setup/demo.sh $(BIN)/perfctl $(BATCHES)

# Tests start Python hundreds of times: it is to keep what it compiled, whatever this machine says.
test proofs coverage guard guard-quick: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.test ## Install with test extras, run all tests, WORKERS (3) files at a time
	$(BIN)/python -m pytest --numprocesses $(or $(WORKERS),3) --dist loadgroup

proofs: $(VENV)/.test ## Run whole what make test samples: every real report, every random draw
	sh scripts/proof/whole.sh $(BIN)/python

check: $(VENV)/.dev ## Lint, types, layers, known weaknesses
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive orchestrator parsers workloads perfctl
	$(BIN)/python scripts/proof/audit.py
	sh scripts/proof/check_layers.sh $(BIN)/lint-imports
	@if command -v shellcheck >/dev/null; then shellcheck scripts/*.sh scripts/*/*.sh .ci/run; else echo "shellcheck is not installed: scripts were not checked"; fi

coverage: $(VENV)/.mutation ## Run all tests: which branches do they execute? Below 90 % it fails
	$(BIN)/python -m pytest --numprocesses $(or $(WORKERS),3) --dist loadgroup --cov --cov-report=term:skip-covered

guard: $(VENV)/.test ## Does perfctl still say what 1.0.0 said? About 15 minutes; changed values: scripts/proof/guard
	$(BIN)/python scripts/proof/guard/guard.py check build/guard --perfctl $(BIN)/perfctl

guard-quick: $(VENV)/.test ## The same with a third of the values, in about 3 minutes
	$(BIN)/python scripts/proof/guard/guard.py check build/guard --quick --perfctl $(BIN)/perfctl

docs: $(VENV)/.docs ## The documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Every table is printed, whatever the one before it says, and kept until something that it reads changes (build/accuracy/).
# The very first run takes half an hour of one core, half of it to trace 2,500 networks.
accuracy: $(VENV)/.peers ## Counts and predicted times against published figures and other counters: all tables
	$(BIN)/python scripts/proof/accuracy/all_tables.py $(TABLES)

algorithms: $(VENV)/.test ## Kernel names and predicted grids against public measurements: one table
	$(BIN)/python scripts/proof/neusight.py

silicon: $(VENV)/.test ## Derived counts against hardware counters of an A100 and an H100: one table each
	$(BIN)/python scripts/proof/silicon/silicon.py
	$(BIN)/python scripts/proof/silicon/silicon_h100.py

bench: $(VENV)/.test ## How fast reports become rows, beside a yardstick measured in the same run
	$(BIN)/python scripts/speed/run.py

faults: $(VENV)/.test ## Kill, starve and confuse real processes: does perfctl keep its promises?
	$(BIN)/python scripts/stress/faults/run.py --moments $(or $(MOMENTS),50)

fuzz: $(VENV)/.fuzz ## Feed damaged reports to every parser: text for FUZZ_SECONDS (600) in all, then databases
	@missed=; for kind in parsers databases; do \
		$(BIN)/python scripts/stress/fuzz/fuzz_$$kind.py || missed="$$missed $$kind"; \
	done; test -z "$$missed"

mutate: $(VENV)/.mutation ## Spoil SAMPLE (300) places of parsers and of the rooms that compute: do the tests notice?
	$(BIN)/python scripts/proof/mutation/mutate.py --sample $(or $(SAMPLE),300)

verdicts: $(VENV)/.test ## Draw DRAWS (5000) networks with known hardware effects: are the reasons given true?
	$(BIN)/python scripts/proof/verdicts/run.py --draws $(or $(DRAWS),5000)

format: $(VENV)/.dev ## Put the code into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what make made; sweeps and stores stay
	rm -rf $(VENV) build dist *.egg-info

# Where there is a GPU, the driver's own library tells its state (extra nvml).
$(VENV)/.torch: EXTRAS := torch,ncu,nvml
$(VENV)/.test: EXTRAS := test
$(VENV)/.dev: EXTRAS := dev
$(VENV)/.docs: EXTRAS := docs
$(VENV)/.peers: EXTRAS := test,peers
$(VENV)/.fuzz: EXTRAS := fuzz
$(VENV)/.mutation: EXTRAS := mutation
$(VENV)/.torch $(VENV)/.test $(VENV)/.dev $(VENV)/.docs $(VENV)/.peers $(VENV)/.fuzz $(VENV)/.mutation: pyproject.toml scripts/setup/make_venv.sh
	sh scripts/setup/make_venv.sh $(PYTHON) $(VENV)
	@echo "Installing perfctl[$(EXTRAS)] into $(VENV). With PyTorch that is 6 GB, and silent for minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$(EXTRAS)]'
	@touch $@ $(if $(filter dev,$(EXTRAS)),$(VENV)/.test)
