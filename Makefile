# Every target does its own set-up: Python 3.11 or newer, a C compiler, and the package indexes are enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help ready run test alone quick core docs check format coverage fuzz lies simulate bench clean mosquitto chromium chaos soak methods stories mutants night pilot planted drawn without

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

ready: $(READY) ## set everything up: .venv, with all extras, and nothing outside of it

run: $(READY) ## each agent alone, one model for all, a model for each group: runs/try, runs/try/report.html
	rm -rf runs/try
	$(BIN)/coordinator compare scenarios/try.yaml --out runs/try --html

test: $(READY) mosquitto chromium ## everything: format, lint, types, then all tests
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

EXTRAS := $(patsubst extras/%/README.md,%,$(wildcard extras/*/README.md))
ALONE := -n 2 -m 'not processes and not broker'
quick: $(READY) ## the tests of pure decisions: methods, messages, engine, sessions; a minute
	$(BIN)/python -m pytest $(ALONE) tests/shared extras/secure tests/broker \
		tests/coordinator/test_rounds*.py tests/agent/test_session*.py

CORE ?= --quick
core: $(READY) mosquitto ## the core without extras, in a copy of the tree: tests of pure decisions, and a fleet with the same bytes
	$(BIN)/python -m scripts.core $(CORE)

without: $(READY) ## the core without each of the extras in turn: tests of pure decisions
	for extra in $(EXTRAS); do \
		$(BIN)/python -m scripts.core --without $$extra --quick --no-fleet || exit 1; done

alone: $(READY) ## the tests of each extra, in a copy that has it and what it uses alone
	for extra in $(EXTRAS); do \
		$(BIN)/python -m scripts.core --alone $$extra || exit 1; done

coverage: $(READY) ## all tests that start no process and no broker, and the share of lines that they run
	$(BIN)/python -m pytest $(ALONE) tests/shared tests/agent tests/coordinator tests/broker extras \
		--cov covey --cov-report term:skip-covered

docs: $(READY) ## the documentation site, built offline with warnings as errors: site/index.html
	$(BIN)/python scripts/docs_site.py

check: $(READY) ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLR0917 --extend-exclude 'extras/*/tests' broker coordinator agent shared extras  # arguments by name
	$(BIN)/mypy

format: $(READY) ## put the code into its format, mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lies: $(READY) ## every method among liars: every kind of lie that a report can tell, some 3 000 runs, half an hour
	$(BIN)/python -m tests.attacks.lies

methods: $(READY) ## rules that the suite tries with a method of each kind, with every method
	COVEY_NIGHT=1 $(BIN)/python -m pytest -n 2 $$(grep -l of_each_kind -r tests extras --include='test_*.py')

stories: $(READY) mosquitto ## long stories, and all cases and examples of rules of which the suite tries some
	COVEY_NIGHT=1 $(BIN)/python -m pytest -n 2 $$(grep -lE 'tests\.night|mark\.night|hypothesis' -r tests extras --include='test_*.py')

mutants: $(READY) ## faults of one line, each planted in a copy of the tree: its test must see it
	$(BIN)/python -m tests.mutants

night: ## all that the suite tries a sample of, one after another, hours: methods, stories, core, without, alone, lies, simulate, fuzz, chaos, planted, mutants
	@$(MAKE) --no-print-directory -j 1 -k CORE= methods stories core without alone lies simulate fuzz chaos planted mutants

SEEDS ?= 1000
BASE ?= 1
simulate: $(READY) ## whole fleets with drawn faults on a virtual clock, SEEDS=1000 of them from BASE=1 on, and as many whose coordinator lies
	$(BIN)/python -m tests.simulator --seeds $(SEEDS) --first $(BASE)
	$(BIN)/python -m tests.simulator --lying --seeds $(SEEDS) --first $(BASE)

fuzz: $(READY) ## a million hostile inputs to everything that reads bytes
	$(BIN)/python -m pytest -n 2 --timeout 0 --hypothesis-profile night --hypothesis-seed $(BASE) tests/fuzz/test_fuzz.py

chaos: $(READY) mosquitto ## 200 runs under faults on seeds, and the table of what came of them: runs/chaos
	$(BIN)/python -m tests.chaos --runs 200 --seed $(BASE) --out runs/chaos

planted: $(READY) mosquitto ## faults planted one and two at a time in a fleet, and what doctor lists first, and healthy fleets: runs/planted
	mkdir -p runs/planted
	$(BIN)/python -m tests.chaos.healthy --out runs/planted/healthy.jsonl
	$(BIN)/python -m tests.chaos.planted --out runs/planted

pilot: $(READY) mosquitto chromium ## a pilot of ten devices to watch, minutes: faults on a timeline, dashboard, table: runs/pilot
	$(BIN)/python -m tests.chaos.pilot --out runs/pilot

soak: $(READY) mosquitto ## 20 minutes of rounds under small faults: memory and descriptors must be flat: runs/soak
	$(BIN)/python -m tests.chaos.soak --minutes 20 --out runs/soak

drawn: $(READY) mosquitto ## 40 minutes of a fleet in which faults of all kinds are drawn, and what doctor lists: runs/drawn
	$(BIN)/python -m tests.chaos.drawn --minutes 40 --out runs/drawn

bench: $(READY) mosquitto ## short forms of the benchmarks of speed, each next to its floor, some minutes: runs/bench
	$(BIN)/python -m benchmarks.encoding --times 5
	$(BIN)/python -m benchmarks.worker --times 3 --jobs 30
	$(BIN)/python -m benchmarks.cells --times 1
	$(BIN)/python -m benchmarks.rounds --kinds fleet agents --times 3 --rounds 20
	$(BIN)/python -m benchmarks.rounds --kinds wide --times 1 --wide-rounds 4
	$(BIN)/python -m benchmarks.reports --agents 100 --out runs/bench
	$(BIN)/python -m benchmarks.shards --agents 60 --times 1 --out runs/bench
	$(BIN)/python -m benchmarks.ten_thousand --short --out runs/bench
	$(BIN)/python -m benchmarks.deadlines --seeds 1 --out runs/bench

clean: ## remove all that was made here but the runs
	rm -rf .venv build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

mosquitto: # the tests that need it skip without it
	@command -v mosquitto || test -x /usr/sbin/mosquitto || scripts/apt-install mosquitto || \
		echo "mosquitto is not installed and could not be: the tests that need it are skipped" >&2

chromium: # the test of the dashboard in a real browser needs it
	@command -v chromium || scripts/apt-install chromium || \
		echo "chromium is not installed and could not be: the test that needs it is skipped" >&2

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv || \
		{ scripts/apt-install python3-venv && $(PYTHON) -m venv --clear .venv; }
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
