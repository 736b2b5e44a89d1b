# Everything a developer, a reader or CI runs. `make help` lists it.
#
# Fresh machine: Go, Python and Node are enough; make demo and make test install
# what else they need (scripts/setup.sh, on Debian as root) or say what to install.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
GOARCH  ?= $(shell $(GO) env GOARCH)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# -buildvcs=false: the stamp would differ in a shared or shallow checkout; the
# version is passed by name instead.
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false
LDFLAGS := -s -w -X main.version=$(VERSION)
TAGS    := guestembed
GOOS    ?= $(shell $(GO) env GOOS)

GUEST := internal/guest/embedded/sandpit-guest-$(GOARCH).bin
FULL := cmd/sandpit/sandpit-full-$(GOARCH).bin
TOOLS := .cache/tools

# Three packages at a time on two cores: much of a test is waiting. The timeout is a safety
# net for a hang, no test depends on it.
TESTFLAGS := -p 3 -tags $(TAGS) -timeout 30m
# The packages that take longest begin first, and with them the quick boot, whose emulator
# keeps one core busy from beginning to end.
LONGEST   := ./internal/hosttest ./internal/driver/linux ./internal/engine ./client ./internal/server ./cmd/sandpit
# Runs go test without its cache, prints what was skipped, and fails if that is not in its
# list. The runs of one make test share their outcomes.
OUTCOMES  := .cache/outcomes.json
REPORT    := $(GO) run ./internal/testreport -events $(OUTCOMES)
DOCUMENTS := docs/SPECIFICATION.md,docs/ATTACKS.md
FUZZTIME  ?= 30s
HOSTS     ?= all
SUITES    ?=
FORM      ?= quick

.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- build ---

# On Linux sandpit is its launcher, which carries the full program; elsewhere it is
# the full program alone: see the documentation of internal/fullprogram.
ifeq ($(GOOS),linux)
SHIPPED := $(TAGS),launcher
else
SHIPPED := $(TAGS)
endif

.PHONY: build
build: parts ## build bin/sandpit with its embedded programs
	@mkdir -p bin
	$(BUILD) -tags $(SHIPPED) -ldflags "$(LDFLAGS)" -o bin/sandpit ./cmd/sandpit

.PHONY: parts
parts: guest ## build the programs that bin/sandpit embeds
ifeq ($(GOOS),linux)
	GOOS=linux GOARCH=$(GOARCH) $(BUILD) -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $(FULL) ./cmd/sandpit
endif

.PHONY: guest
guest: ## build the guest program that bin/sandpit embeds
	GOOS=linux GOARCH=$(GOARCH) $(BUILD) -ldflags "-s -w" -o $(GUEST) ./cmd/sandpit-guest

.PHONY: cross
cross: ## build for linux/arm64 and darwin, without keeping the result
	GOOS=linux GOARCH=arm64 $(BUILD) -ldflags "-s -w" -o internal/guest/embedded/sandpit-guest-arm64.bin ./cmd/sandpit-guest
	GOOS=linux GOARCH=arm64 $(BUILD) -tags $(TAGS) ./...
	GOOS=linux GOARCH=arm64 $(BUILD) -tags $(TAGS) -ldflags "-s -w" -o cmd/sandpit/sandpit-full-arm64.bin ./cmd/sandpit
	GOOS=linux GOARCH=arm64 $(BUILD) -tags $(TAGS),launcher -o /dev/null ./cmd/sandpit
	GOOS=darwin GOARCH=arm64 $(BUILD) ./...

.PHONY: install
install: parts ## install sandpit into $(go env GOPATH)/bin
	CGO_ENABLED=0 $(GO) install -trimpath -buildvcs=false -tags $(SHIPPED) -ldflags "$(LDFLAGS)" ./cmd/sandpit

.PHONY: demo
demo: setup build ## run real work in a sandbox, and try to break out
	@bash scripts/demo.sh

# --- tests ---

.PHONY: setup
setup: ## install the system packages that the tests and the demo need
	@bash scripts/setup.sh
	@$(MAKE) --no-print-directory $(TOOLS)/versitygw || echo "setup: no S3 server; what needs it will be skipped" >&2

# The S3 server of the tests. Its own module is too large to be one of tools/go.mod.
$(TOOLS)/versitygw:
	@mkdir -p $(TOOLS)
	GOBIN=$(CURDIR)/$(TOOLS) $(GO) install github.com/versity/versitygw/cmd/versitygw@v1.8.0

# Where tests run, sandboxes can be made: on a machine that can make none, tests that
# need them fail. To have them skipped: make test SANDPIT_TEST_EXPECT=
ifeq ($(GOOS),linux)
export SANDPIT_TEST_EXPECT ?= works
endif

# cmd/sandpit is tested as make build builds it. What differs if the full program is alone,
# as go install builds it, is how run, shell, exec and version begin.
.PHONY: test
test: forget setup build vet lint cross ## all tests, on a fresh machine of 2 cores within 30 minutes
	$(REPORT) -- $(TESTFLAGS) -run '^TestScripts$$/^(run|json|network|server_life)$$' ./cmd/sandpit
	SANDPIT_TEST_HOSTS=quick SANDPIT_TEST_BINARY=$(CURDIR)/bin/sandpit $(REPORT) -documents $(DOCUMENTS) -- $(TESTFLAGS) $(LONGEST) ./...
	@sed 's/^/not run: /' .cache/not-run 2>/dev/null || true

.PHONY: forget
forget:
	@mkdir -p .cache
	@rm -f $(OUTCOMES)

.PHONY: check
check: build lint ## lint, unit tests and one pass of the conformance suites, within 5 minutes
	$(GO) test -short $(TESTFLAGS) $$($(GO) list ./... | grep -v '/cmd/\|/examples')

.PHONY: test-vm
test-vm: build ## the quick boot: pure cgroup v2, systemd, ordinary users and root, under QEMU
	@mkdir -p .cache
	SANDPIT_TEST_HOSTS=quick $(REPORT) -v -- $(TESTFLAGS) -run '^TestHosts$$' ./internal/hosttest

.PHONY: test-hosts
test-hosts: setup build ## every suite on every kind of host, under QEMU and Docker (HOSTS=a,b SUITES=c FORM=full)
	SANDPIT_TEST_HOSTS=$(HOSTS) SANDPIT_TEST_SUITES=$(SUITES) SANDPIT_TEST_FORM=$(FORM) $(GO) test -tags $(TAGS) -timeout 4h -count=1 -v -run '^TestHosts$$' ./internal/hosttest

.PHONY: test-long
test-long: setup build ## the long forms of the tests: volumes, bursts, races, fuzzing, every host
	SANDPIT_TEST_LONG=1 $(GO) test -p 1 -tags $(TAGS) -timeout 2h -count=1 ./...
	$(GO) test -p 1 -race -tags $(TAGS) -timeout 1h -count=1 ./...
	$(MAKE) fuzz
	$(MAKE) test-hosts FORM=full

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	@bash scripts/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: setup build ## compare Sandpit with bwrap, runc, runsc and Docker, in one table (BENCHFLAGS=-quick)
	$(GO) run ./bench $(BENCHFLAGS)

# --- code ---

.PHONY: vet
vet: ## go vet, with the assembly of both architectures
	GOOS=linux GOARCH=amd64 $(GO) vet ./...
	GOOS=linux GOARCH=arm64 $(GO) vet ./...

.PHONY: lint
lint: ## go mod tidy -diff, golangci-lint, gofumpt and govulncheck, at the versions of tools/go.mod
	@bash scripts/lint.sh

.PHONY: fmt
fmt: ## format the code
	@mkdir -p $(TOOLS)
	$(GO) -C tools build -o ../$(TOOLS)/ mvdan.cc/gofumpt
	git ls-files -z '*.go' | xargs -0 $(TOOLS)/gofumpt -w

.PHONY: clean
clean: ## remove what was built, and the images kept for test-hosts
	rm -rf bin .cache internal/guest/embedded/sandpit-guest-*.bin cmd/sandpit/sandpit-full-*.bin
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/sandpit-test"
