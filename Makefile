# Everything that a user does goes through here; `make help` lists it. The names are stable (README).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
MAKEFLAGS += --no-print-directory
# What a user's shell has in the first would come before the packages of this checkout. The second, which images for containers like to set,
# would have every process compile pandas and its like again: seven seconds of CPU time instead of three, hundreds of times in the tests.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

SCALE ?= smoke
FIG ?= fig06
SYSTEMS ?=
INVENTORY ?= local
DISK ?= hdd-7200
RESULTS ?= results
FROM ?=
TO ?=
PEERS ?=
A ?=
B ?=

FIGURES := fig01-05 fig06 fig07 fig08 fig09 fig09a fig09b fig10 fig11 fig11a fig11b fig12 beyond
# A target runs the experiments with its name, or with its name and a letter, or a dash and a word, behind it.
EXPERIMENTS_OF = $(patsubst workloads/%.yml,%,$(foreach name,$(1),$(wildcard workloads/$(name).yml workloads/$(name)[a-z].yml workloads/$(name)-*.yml)))
EXISTING = $(call EXPERIMENTS_OF,$(filter-out fig%a fig%b,$(FIGURES)))

COMMA := ,
SPACE := $(subst ,, )

# The toolchain that setup/bootstrap.sh chose comes first; read when a recipe runs, after set-up.
CARGO = PATH="$$(cat .tools/cargo-directory):$$PATH" cargo
RUNNER = .venv/bin/python -m runner
WHERE = --results "$(RESULTS)"
WHAT = --scale "$(SCALE)" --inventory "$(INVENTORY)" --disk "$(DISK)" $(WHERE) $(if $(SYSTEMS),--systems "$(SYSTEMS)") $(if $(FROM),--from "$(FROM)")
# What FIG asks for: `all`, or names as the targets have them; one that does not exist is left for the runner to refuse.
PLANNED = $(if $(filter all,$(FIG)),$(EXISTING),$(foreach name,$(subst $(COMMA), ,$(FIG)),$(or $(call EXPERIMENTS_OF,$(name)),$(name))))

.PHONY: help doctor setup python provision lock build compile compile-tests smoke test lint plan $(FIGURES) all figures claims report compare publish notebooks status retry stop bench counts clean

help: ## List the targets and variables
	@missing='$(strip $(foreach name,$(FIGURES),$(if $(call EXPERIMENTS_OF,$(name)),,$(name))))'
	awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST) |
	  sed -E "/^  make ($${missing// /|}) /s/$$/ (no workload yet)/"
	@printf '\nVariables (with their values now):\n'
	@printf '  %-22s %s\n' 'SCALE=$(SCALE)' 'smoke, laptop or paper: records, seconds, trials and grid (workloads/scales.yml)' \
	  'FIG=$(FIG)' 'the experiments of `make plan`, separated by commas, or all; there is: $(EXISTING)' \
	  'SYSTEMS=$(SYSTEMS)' 'only these systems, separated by commas (default: all of the experiment)' \
	  'INVENTORY=$(INVENTORY)' 'local, lab, or the path of an Ansible inventory' \
	  'DISK=$(DISK)' 'hdd-7200, hdd-297mb, hdd-15k, sata-ssd, nvme (emulated), none (the own disk as it is), /dev/NAME (a real one, formatted)' \
	  'RESULTS=$(RESULTS)' 'where results go' \
	  'FROM=$(FROM)' 'the compact copy of an unfinished run to begin with: its trials are not run again' \
	  'TO=$(TO)' 'where `make publish` puts such a copy, for a later sitting (default: results/published/SCALE, to be shown)' \
	  'PEERS=$(PEERS)' '1: `make bench` measures other stores beside the engine' \
	  'A=$(A) B=$(B)' 'two runs for `make compare`: latest, a name in RESULTS/runs, a directory, or a published run (smoke, ...)'

doctor: ## Say what is missing or wrong on this machine, and how to mend it
	@command -v python3 >/dev/null || { echo 'FAIL  python           not there -> apt-get install python3, or just make setup'; exit 1; }
	python3 setup/doctor.py

setup: ## Install what is needed: packages, Python environment, servers (quick when nothing changed)
	@setup/bootstrap.sh
	@setup/provision.sh "$(INVENTORY)"

# Enough for what is made from results alone: no server, no compiler.
python:
	@setup/bootstrap.sh --python

provision: ## Provision the nodes of INVENTORY again through Ansible
	@setup/bootstrap.sh
	@setup/provision.sh "$(INVENTORY)" --force

lock: ## Make requirements.lock anew from requirements.in
	@setup/bootstrap.sh --lock

build: setup ## Build the engine and the drivers
	@$(MAKE) compile

# These two need of the set-up the toolchain alone.
compile:
	@$(CARGO) build --release --locked --workspace --exclude anticache-bench

compile-tests:
	@$(CARGO) test --locked --workspace --no-run

smoke: override SCALE := smoke
smoke: build ## From a bare clone to every figure with table and claims, at the smallest scale
	@$(RUNNER) run --experiment "$(subst $(SPACE),$(COMMA),$(EXISTING))" $(WHAT)
	$(RUNNER) claims $(WHERE)

test: build ## Run every test: Rust, Python, end to end on the real servers, notebooks
	@# The lab of namespaces needs root and an SSH server, which nothing else here does.
	if [ "$$(id -u)" -eq 0 ] && ! (for tool in sshd nft mkfs.xfs ip ssh; do PATH="$$PATH:/usr/sbin:/sbin" command -v $$tool || exit 1; done) >/dev/null; then
	  ANSIBLE_CONFIG=ansible/ansible.cfg .venv/bin/ansible-playbook --inventory ansible/inventories/local ansible/tests.yml
	fi
	# Many wait for a server, a disk or a clock, so two run on each CPU.
	RUST_TEST_THREADS=$$((2 * $$(nproc))) $(CARGO) test --locked --workspace
	.venv/bin/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

lint: setup ## Check formatting, lints and types of Rust, Python, YAML and Ansible
	@$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/yamllint --strict .
	cd ansible && PATH="$$PWD/../.venv/bin:$$PATH" ansible-lint -q --offline --strict

plan: setup ## Print cells, trials, estimated time and disk of FIG at SCALE, and what is recorded; runs nothing
	@$(RUNNER) plan --experiment "$(subst $(SPACE),$(COMMA),$(strip $(PLANNED)))" $(WHAT)

fig01-05: ## Figures 1 to 5: drawn from what a running engine says of itself
fig06: ## Run the experiment of Figure 6 at SCALE, then draw it
fig07: ## Figure 7: TPC-C by data/memory ratio
fig08: ## Figure 8: merge strategies
fig09: ## Figures 9a and 9b: block and tuple sizes
fig09a: ## Figure 9a: block size
fig09b: ## Figure 9b: tuple size
fig10: ## Figure 10: LRU chain, inside the engine
fig11: ## Figures 11a and 11b: eviction and index overhead, inside the engine
fig11a: ## Figure 11a: steps of an eviction by block size
fig11b: ## Figure 11b: index updates
fig12: ## Figure 12: evictions over time
beyond: ## What the paper leaves open: sampling rate, holes, evictions, order of keys, sectors, disks, what the gain rests on, size, log and its syncs, readers, terminals, load
$(FIGURES):
	@[ -n "$(call EXPERIMENTS_OF,$@)" ] || { echo "make $@: no workloads/$@.yml yet; there is: $(EXISTING)" >&2; exit 2; }
	$(MAKE) build
	$(RUNNER) run --experiment "$(subst $(SPACE),$(COMMA),$(call EXPERIMENTS_OF,$@))" $(WHAT)
	$(RUNNER) claims $(WHERE)

all: build ## Run every experiment that exists, at SCALE
	@$(RUNNER) run --experiment "$(subst $(SPACE),$(COMMA),$(EXISTING))" $(WHAT)
	$(RUNNER) claims $(WHERE)

figures: python ## Draw the figures of the newest run again, of the published one where nothing was run yet
	@$(RUNNER) figures $(WHERE)

claims: python ## Judge the paper's claims on the newest run
	@$(RUNNER) claims $(WHERE)

report: python ## Draw the newest run again and write its report, as HTML and PDF
	@$(RUNNER) report $(WHERE)

compare: python ## Compare run B with run A cell by cell: ratios with intervals, verdicts, figures in RESULTS/compare
	@[ -n "$(A)" ] && [ -n "$(B)" ] || { echo 'make compare: name two runs, for instance A=smoke B=latest' >&2; exit 2; }
	$(RUNNER) compare "$(A)" "$(B)" --figure $(WHERE)

publish: python ## Copy the newest run, less what is of its machine alone, to results/published, and execute notebooks/ on it; or to TO
	@$(RUNNER) publish $(WHERE) $(if $(TO),--to "$(TO)")

notebooks: python ## Execute the committed notebooks on the published run again
	@$(RUNNER) notebooks

status: python ## Say what a sweep is doing now, from another terminal, and how far the newest run is
	@$(RUNNER) status $(WHERE)

retry: build ## Run only the failed trials of the newest run
	@$(RUNNER) retry $(WHERE)

stop: ## Stop the servers that a killed run left behind; removes nothing
	@python3 setup/clean.py --servers

bench: build ## Measure engine, drivers and disk, with PEERS=1 other stores too; writes RESULTS/bench/latest.json
	@if [ '$(PEERS)' = 1 ]; then
	  setup/bootstrap.sh --peers
	  echo 'bench: compiling the stores that the engine is compared with takes 20 minutes on two cores the first time' >&2
	fi
	$(CARGO) run --release --locked -p anticache-bench $(if $(filter 1,$(PEERS)),--features peers) -- all --json "$(abspath $(RESULTS))/bench/latest.json"

counts: build ## Count a transaction's instructions and cache misses in a simulated processor (valgrind); writes RESULTS/bench/counts.json
	@setup/bootstrap.sh --counts
	$(CARGO) run --release --locked -p anticache-bench -- counts --json "$(abspath $(RESULTS))/bench/counts.json"

clean: ## Stop the servers that were started here, remove var/ and RESULTS/runs
	@if command -v python3 >/dev/null; then python3 setup/clean.py --results "$(RESULTS)"; fi
