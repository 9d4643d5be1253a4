# Relevo. `make` lists the targets. Nothing here needs more than Go, make and the system's package manager.

GO          ?= go
BUF_VERSION := 1.75.0
BASE        := proto/relevo.binpb

# Tools are built once for each state of tools/go.sum.
TOOLS := .tools/$(shell cksum < tools/go.sum | cut -d' ' -f1)

# buf comes from npm in seconds; from source it takes minutes.
BUF := $(if $(shell command -v npx),npx --yes @bufbuild/buf@$(BUF_VERSION),$(GO) run github.com/bufbuild/buf/cmd/buf@v$(BUF_VERSION))

# One choice for every build, or everything is compiled twice. The race detector needs cgo, and so a C compiler.
CC_FOUND := $(shell command -v gcc || command -v clang)
export CGO_ENABLED := $(if $(CC_FOUND),1,0)
RACE := $(if $(CC_FOUND),-race)

PLATFORMS := linux/amd64 linux/arm64 darwin/arm64

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: fmt-check vet proto lint build examples quick ## the developer's loop: format, vet, lint, build, tests without servers

.PHONY: test
test: ## every test, on real servers that it brings up, with the race detector where there is a C compiler
	@[ -n "$(RACE)" ] || echo "no C compiler: the race detector is off"
	$(GO) build -o .tools/services ./test/services
	$(GO) build -o .tools/report ./test/report
	.tools/services -- .tools/report $(RACE) -timeout 20m ./...

.PHONY: demo
demo: build ## the quickstart, alive: order service, relay, two consumers, three crashes, a count
	$(GO) build -o bin/ ./examples/quickstart/...
	@bin/demo

.PHONY: bench
bench: ## the figures of docs/performance.md, beside their limits (12 minutes; FIGURES="drain latency" for some)
	$(GO) run ./test/bench $(FIGURES)
	$(GO) test ./host/pipeline -run '^$$' -bench Transport -benchtime 1x

.PHONY: build
build: ## relevo and its plugins, into bin/
	$(GO) build -o bin/ ./host/cmd/relevo ./plugins/...

.PHONY: generate
generate: ## the code of the protocol, from proto/
	$(BUF) generate

.PHONY: docs
docs: build ## docs/pipeline-reference.md, from the schemas of the programs
	bin/relevo schema --markdown > docs/pipeline-reference.md

.PHONY: fmt
fmt: $(TOOLS)/gofumpt ## format the code
	$(TOOLS)/gofumpt -w .

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## golangci-lint, with the import rules (built from source at the first time: minutes)
	$(TOOLS)/golangci-lint run ./...

.PHONY: breaking
breaking: ## does proto/ break what the last release promised?
	$(BUF) breaking --against $(BASE)

.PHONY: image
image: ## at a release: make proto/ the base of `make breaking`
	$(BUF) build -o $(BASE)

.PHONY: cross
cross: ## compile everything for every platform
	@for p in $(PLATFORMS); do \
		echo "build for $$p"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./... && \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) vet ./... || exit 1; \
	done

.PHONY: clean
clean: ## remove what was built
	rm -rf bin .tools

# The parts of check.

.PHONY: fmt-check vet proto examples quick
fmt-check: $(TOOLS)/gofumpt
	@bad=$$($(TOOLS)/gofumpt -l .); [ -z "$$bad" ] || { echo "not formatted (make fmt):"; echo "$$bad"; exit 1; }

vet:
	$(GO) vet ./...

# The generated code is what buf makes of proto/ now, and nothing is broken.
proto:
	$(BUF) lint
	$(BUF) breaking --against $(BASE)
	@rm -rf .tools/proto && mkdir -p .tools/proto && $(BUF) generate -o .tools/proto
	@(cd .tools/proto && find . -name '*.pb.go') | while read -r f; do \
		diff -q ".tools/proto/$$f" "$$f" || { echo "generated code is old (make generate)"; exit 1; }; \
	done

# What is in docs and examples is what the programs say and take.
examples: build
	bin/relevo validate --allow-missing-env examples/quickstart/pipeline.yaml
	@bin/relevo schema --markdown | diff -q - docs/pipeline-reference.md >/dev/null || \
		{ echo "docs/pipeline-reference.md is old (make docs)"; exit 1; }

quick:
	$(GO) build -o .tools/report ./test/report
	.tools/report -short -timeout 10m ./...

$(TOOLS)/gofumpt:
	cd tools && CGO_ENABLED=0 $(GO) build -o ../$@ mvdan.cc/gofumpt

$(TOOLS)/golangci-lint:
	cd tools && CGO_ENABLED=0 $(GO) build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
