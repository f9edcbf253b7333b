# foldyard: make run shows it, make test proves it. Both start from a clean
# clone and a Go toolchain.

GO      ?= go
LDFLAGS := -s -w
TOOLS   := .cache/tools

export CGO_ENABLED ?= 0

.PHONY: all build box guest run test unit vet cross e2e race fuzz bench soak lint fmt tools clean

all: build

# The parts that run in boxes and in virtual machines are programs of their
# own, embedded; boxes that are no virtual machines are made on Linux only.
TAGS := fyguest
ifeq ($(shell $(GO) env GOOS),linux)
TAGS := fybox,fyguest
build: box
endif
build: guest
	$(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/fy ./cmd/fy
	@cp bin/fy bin/.fy && mv -f bin/.fy bin/fy # what a linker wrote lies in memory in small pieces: a fifth of each start

box:
	$(GO) build -trimpath -ldflags '-s -w' -o cmd/fy/fy-box ./cmd/fy-box

# A virtual machine runs Linux, on the kind of processor that its host has.
guest:
	GOOS=linux $(GO) build -trimpath -ldflags '-s -w' -o cmd/fy/fy-guest ./cmd/fy-guest

# The main job on real input, as a tour of a minute. TOUR=-own asks no registry.
run: build
	@$(GO) build -trimpath -o bin/tour ./test/tour
	@bin/tour $(TOUR) bin/fy

# Everything that this computer can show. What it cannot is skipped with a
# reason, which `go test -v` prints.
test: vet cross unit e2e

vet:
	@bad=$$(gofmt -l cmd internal test); if [ -n "$$bad" ]; then echo "gofmt: $$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags e2e ./test/...

# The other platforms build, tests too.
cross: guest
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet -tags fyguest ./cmd/fy
	GOOS=linux GOARCH=arm64 $(GO) build ./...

unit:
	$(GO) test ./...

# The real program in real boxes: real clients on an internet of our own and at
# the registries of this computer, then checks from outside, which need root.
e2e: build bin/grpcclient
	$(GO) build -trimpath -o bin/tour ./test/tour
	$(GO) vet -tags e2e ./test/e2e/...
	FY_BIN=$(CURDIR)/bin/fy FY_TOUR=$(CURDIR)/bin/tour FY_GRPC_CLIENT=$(CURDIR)/bin/grpcclient \
	  $(GO) test -tags e2e -count=1 -p 1 -timeout 20m -v ./test/e2e/...
	@sh test/e2e/run.sh bin/fy
	@bash test/e2e/podman.sh

# A module of its own: fy needs nothing of what it needs.
bin/grpcclient: test/e2e/grpcclient/main.go test/e2e/grpcclient/go.mod
	cd test/e2e/grpcclient && $(GO) build -trimpath -o $(CURDIR)/$@ . || echo "e2e: no gRPC client, its modules cannot be had"

accept: build
	@sh test/e2e/run.sh bin/fy accept

race:
	CGO_ENABLED=1 $(GO) test -race ./internal/...

# Ten seconds for each fuzz target; FUZZTIME=10m for longer. Go would take up
# to a minute to shorten each input that covers something new.
FUZZTIME ?= 10s
FUZZ     ?= ./internal/...
fuzz:
	@set -e; for pkg in $$($(GO) list $(FUZZ)); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
	  done; \
	done

# Beside fixed limits, in one run: writes docs/bench.md. BENCHFLAGS="-only tunnel"
# takes one measurement and writes nothing.
bench: build
	@sh test/bench/run.sh bin/fy $(BENCHFLAGS)

# Half an hour of full load: writes its part of docs/bench.md.
soak: build
	@sh test/bench/run.sh soak bin/fy $(BENCHFLAGS)

# What is built of the linters is used; `make tools` builds them all (minutes).
lint: vet
	GOOS=darwin $(GO) vet ./...
	@if [ -x $(TOOLS)/staticcheck ]; then $(TOOLS)/staticcheck ./...; else echo "lint: no staticcheck, run make tools"; fi
	@if [ -x $(TOOLS)/golangci-lint ]; then $(TOOLS)/golangci-lint run ./...; else echo "lint: no golangci-lint, run make tools"; fi

tools:
	@mkdir -p $(TOOLS)
	cd tools && GOBIN=$(CURDIR)/$(TOOLS) $(GO) install tool

fmt:
	gofmt -w cmd internal test
	@if [ -x $(TOOLS)/gofumpt ]; then $(TOOLS)/gofumpt -w cmd internal test; fi

clean:
	rm -rf bin .cache
