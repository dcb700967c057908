# Everything a contributor or a CI machine needs. `make help` explains itself
# from the ## comments; a test checks that every target has one.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Tools are pinned by modules of their own, so that users of the SDK inherit
# none of their dependencies, and are built once into BIN.
BIN := $(CURDIR)/.cache/bin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The version comes from -ldflags: the go command's own stamping fails in a
# checkout that belongs to another user.
export GOFLAGS := -buildvcs=false
# The race detector needs cgo; what that brings in of C (zstd) is compiled
# without optimisation here, which takes a third of the time.
RACE := CGO_ENABLED=1 CGO_CFLAGS=-O0 go test -race
# The folder of the tools comes first, so that buf finds its plugins there.
export PATH := $(BIN):$(PATH)

# Limits of one `go test` run; a hang is reported with all its goroutines.
UNIT_TIMEOUT := 8m
E2E_TIMEOUT := 10m
FUZZTIME := 20s
# Packages that are tested apart from the others: checks of the tree, real
# processes, and those that have no concurrency of their own while the race
# detector would cost minutes (an SQL engine to compile, simulated seeds).
APART := /ops/(lint|e2e|chaos|demo|sim)$$|/sdk/fence$$
# Length of the storm of `make chaos`.
DURATION := 5m
# Seeds of the simulator in one `make test`, new ones each time.
TEST_SEEDS := 200

.PHONY: help
help: ## Show this text
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST) | sort

.PHONY: build
build: ## Build the binary into bin/mortise
	@mkdir -p bin
	go build -ldflags '-X main.version=$(VERSION)' -o bin/mortise ./ops/mortise

.PHONY: run
run: build ## Build and run a three-node cluster in one process: gRPC on 127.0.0.1:7420, HTTP on 7421
	bin/mortise dev

.PHONY: demo
demo: build ## Freeze a lock holder, let another take over, and watch the fence refuse the first one's write
	MORTISE_BIN=$(CURDIR)/bin/mortise go run ./ops/demo

.PHONY: test
test: deps tools build ## Check everything: house rules, unit tests with -race, end-to-end with real processes
	( units=$$(go list ./... | grep -vE '$(APART)'); failed=0; \
	  go test -json -count=1 -timeout $(UNIT_TIMEOUT) ./ops/lint || failed=1; \
	  go test -json -timeout $(UNIT_TIMEOUT) ./sdk/fence || failed=1; \
	  go test -json -count=1 -timeout $(UNIT_TIMEOUT) ./ops/sim -args -seeds $(TEST_SEEDS) || failed=1; \
	  $(subst go test,go test -json,$(RACE)) -timeout $(UNIT_TIMEOUT) $$units || failed=1; \
	  MORTISE_BIN=$(CURDIR)/bin/mortise go test -json -count=1 -timeout $(E2E_TIMEOUT) -p 1 ./ops/e2e ./ops/chaos || failed=1; \
	  exit $$failed ) | go run ./ops/testreport

.PHONY: unit
unit: ## Unit tests only, with -race
	$(RACE) -timeout $(UNIT_TIMEOUT) $$(go list ./... | grep -vE '$(APART)')

.PHONY: e2e
e2e: build ## End-to-end tests only, with real processes; ARGS=-long runs the long forms
	MORTISE_BIN=$(CURDIR)/bin/mortise go test -count=1 -v -timeout 120m ./ops/e2e -args $(ARGS)

.PHONY: lint
lint: tools ## House rules, vet, staticcheck, gofmt, buf, generated code, documents
	go test -count=1 ./ops/lint

.PHONY: generate
generate: tools ## Regenerate the code that comes from proto/ and from go:generate lines
	buf generate
	go generate ./...

.PHONY: fmt
fmt: ## Format all Go files that are not generated
	gofmt -w $$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$')

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (20s each)
	@git grep -hoE --untracked -l '^func Fuzz' -- '*_test.go' | while read -r f; do \
	  grep -oE '^func Fuzz[A-Za-z0-9_]*' "$$f" | while read -r _ name; do \
	    echo "== $$name in $$(dirname "$$f")"; \
	    go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$f")" </dev/null; \
	  done; \
	done

# Seeds are independent: one process per CPU.
SEEDS := 1000
FIRST := $(shell echo $$(( (RANDOM << 30 | RANDOM << 15 | RANDOM) & 0xfffffffffff )))
JOBS := $(shell nproc)
.PHONY: sim
sim: ## Live through SEEDS (1000) runs of a simulated cluster with faults, from seed FIRST (random), in JOBS processes
	@mkdir -p $(BIN)
	@go test -c -o $(BIN)/sim.test ./ops/sim
	@per=$$(( ($(SEEDS) + $(JOBS) - 1) / $(JOBS) )); left=$(SEEDS); first=$(FIRST); failed=0; pids=; \
	while [ $$left -gt 0 ]; do n=$$(( left < per ? left : per )); \
	  GOMAXPROCS=1 $(BIN)/sim.test -test.run '^TestSeeds$$' -test.timeout 0 -seeds $$n -first $$first & \
	  pids="$$pids $$!"; left=$$(( left - n )); first=$$(( first + n )); done; \
	for p in $$pids; do wait $$p || failed=1; done; exit $$failed

.PHONY: chaos
chaos: build ## Break a cluster of real processes in network namespaces for DURATION (5m) and judge its clients' history (needs root)
	MORTISE_BIN=$(CURDIR)/bin/mortise go test -count=1 -v -timeout 0 ./ops/chaos -args -duration $(DURATION) $(ARGS)

.PHONY: sim-mutants
sim-mutants: ## Switch known bugs on, one at a time (MUTANT: names that contain it): the simulator must find each within 2,000 seeds
	go test -tags mutants ./ops/sim -count=1 -timeout 0 -run '^TestMutants$$' -args -mutant '$(MUTANT)'

.PHONY: bench
bench: ## Load an endpoint (ENDPOINTS, default 127.0.0.1:7420) and print pairs/s and latencies; ARGS are passed on
	go run ./ops/bench --endpoints $${ENDPOINTS:-127.0.0.1:7420} $(ARGS)

.PHONY: tools
tools: $(BIN)/.tools $(BIN)/.buf ## Build the pinned tools into .cache/bin

$(BIN)/.tools: tools/go.mod tools/go.sum
	@mkdir -p $(BIN)
	cd tools && GOBIN=$(BIN) go install tool
	@touch $@

$(BIN)/.buf: tools/buf/go.mod tools/buf/go.sum
	@mkdir -p $(BIN)
	cd tools/buf && GOBIN=$(BIN) go install tool
	@touch $@

# PostgreSQL is for the tests of sdk/fence; the race detector needs a C
# compiler. Nothing is installed that is there already.
.PHONY: deps
deps: ## Install the Debian packages that the tests need, if they are missing (needs root)
	@need=""; \
	command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || need="$$need postgresql"; \
	command -v ip >/dev/null && command -v tc >/dev/null || need="$$need iproute2"; \
	command -v gcc >/dev/null || need="$$need gcc libc6-dev"; \
	if [ -z "$$need" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then echo "please install:$$need" >&2; exit 1; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "please run as root: apt-get install$$need" >&2; exit 1; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -q; \
	case "$$need" in *postgresql*) \
	  apt-get install -q -y --no-install-recommends postgresql-common; \
	  sed -i -E 's/^#? *create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf;; esac; \
	apt-get install -q -y --no-install-recommends $$need

.PHONY: clean
clean: ## Remove what was built here
	rm -rf bin .cache
