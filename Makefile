CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lambdalock
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
CFN_LINT := 1.58.0
SAM_TRANSLATOR := 1.115.0
TEMPLATES := $(CACHE)/templates-$(CFN_LINT)-$(SAM_TRANSLATOR)

.DEFAULT_GOAL := help
.PHONY: help run serve play test install-servers sam-test deploy test-aws lint release-check release-binaries lint-template size verify soak mutants fuzz bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build/lockctl ## the program of README.md in 8 environments, without and with the lock; LOCK_URL=an embedded Redis
	@mkdir -p build/invoices
	@build/lockctl local --event examples/invoice/event.json --env 'ROWS_URL={{redis}}' --env 'FOLDER=$(CURDIR)/build/invoices' --think 5ms \
		--before 'rm -f "$$FOLDER"/*' \
		--after 'n=$$(ls "$$FOLDER" | wc -l); echo "invoices stored: $$n"; [ $$n = $$LOCKCTL_SUCCEEDED ]' \
		--compare examples/invoice

serve: build/lockctl ## the lock service on this machine, to try with curl; PORT=8080, LOCK_URL=memory://
	@exec build/lockctl serve $(PORT)

play: build/play ## a page to play with: the guard in WebAssembly, in virtual time; any server of files can serve build/play
	@go run ./internal/play build/play

.PHONY: build/play
build/play:
	@mkdir -p $@
	@GOOS=js GOARCH=wasm CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o $@/play.wasm ./internal/play
	@cp internal/play/page/* internal/lib/page/page.css internal/lib/page/page.js "$$(go env GOROOT)/lib/wasm/wasm_exec.js" $@/

# As the functions are built, so that both share the compiled packages.
.PHONY: build/lockctl
build/lockctl:
	@[ -e $@ ] || echo "building lockctl: the first time, this can take minutes"
	@CGO_ENABLED=0 .ci/progress "$$(go list -deps ./cmd/lockctl | wc -l)" \
		go build -v -trimpath -buildvcs=false -ldflags "-X main.version=$$(git describe --always --dirty 2>/dev/null)" -o $@ ./cmd/lockctl

# make lint vets. The garbage collector runs less often, in the compiler, too: memory is there, and time is short. What
# only a debugger reads is neither compiled nor linked.
test: export GOGC = 400
RACE := -race -gcflags=all=-dwarf=false
GO_TEST := go test $(RACE) -vet=off -ldflags=-s -timeout 30m

# First what all modules share is compiled, and what the functions and lockctl are made of: otherwise several
# tests, which build these, would compile it at the same time. go list links nothing, as go build would.
SHARED := ./... ./lockstore/datastore/... ./lockstore/cosmosstore/... ./lockstore/sqlstore/sqltest/...
BUILT := ./functions/... ./cmd/lockctl
test: install-servers ## install what the tests need, run all with the race detector
	@echo "compiling for the tests: the first time, this takes minutes"
	@.ci/progress "$$(go list -deps $(SHARED) | wc -l)" go list -v -export -deps $(RACE) $(SHARED)
	@echo "compiling the functions and lockctl"
	@CGO_ENABLED=0 .ci/progress "$$(go list -deps $(BUILT) | wc -l)" go list -v -export -deps -trimpath -tags=lambda.norpc $(BUILT)
	@.ci/progress 0 $(MAKE) -k test-most test-slow test-sql

# Many tests wait, so those of four packages run at once. What takes longest comes first, so that nothing waits for it in
# the end.
OTHERS := ./cmd/lockctl/... ./guard/otelguard/... ./verify ./verify/checker ./verify/mutants ./verify/storms ./bench \
	$(addprefix ./examples/,counter/... etcdstore/... own-function/... queue/... sqlfence/...)
.PHONY: test-most test-slow test-sql
test-most:
	$(GO_TEST) -p 4 -parallel 16 ./lockstore/redisstore ./lockstore/dynamostore ./lockstore/casstore ./internal/watchdog ./internal/clienttest ./lockstore/... $(OTHERS) ./...

# Some servers of tests are slow, and their leases are short: their tests run when nothing else does, side by side, as they wait most
# of the time.
test-slow:
	$(GO_TEST) -parallel 8 ./lockstore/datastore/... ./lockstore/cosmosstore/...
test-sql:
	$(GO_TEST) -parallel 8 ./lockstore/sqlstore/... ./lockstore/sqlstore/sqltest/...

install-servers: ## Redis, DynamoDB Local, PostgreSQL and the others that the tests start
	@.ci/progress 0 sh -c 'for script in internal/testservers/install-*.sh; do sh "$$script" || exit; done'

sam-test: ## the functions under sam local in Docker, with every event; also the test of make test-aws on a fake AWS
	@sh functions/internal/samtest/run.sh

deploy: ## build with the SAM CLI and deploy; asks the first time
	@sh deploy/deploy.sh

test-aws: ## the events of sam-test against a deployed stack, STACK=name
	@[ -n "$(STACK)" ] || { echo "want the name of a stack, as in make test-aws STACK=lambdalock"; exit 1; }
	@STACK="$(STACK)" go test -tags sam ./functions/internal/samtest -run '^TestAWS$$' -v -count=1 -timeout 35m

lint: ## gofmt, go vet, staticcheck, go mod tidy and verify
	@unformatted=$$(gofmt -l .) && { [ -z "$$unformatted" ] || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }; }
	go vet -tags sam work
	go run $(STATICCHECK) -tags sam work
	.ci/tidy -diff
	go mod verify

release-check: ## what a user gets of the next version: go get, go install, a program, without go.work
	@.ci/release-check

release-binaries: ## lockctl for linux and darwin, amd64 and arm64, with sums, VERSION=v0.1.0
	@.ci/release-binaries $(VERSION)

lint-template: ## cfn-lint over the templates, as SAM translates them; the lock table in CDK and Terraform
	@[ -x $(TEMPLATES)/bin/cfn-lint ] || { \
		echo "installing cfn-lint $(CFN_LINT) and aws-sam-translator $(SAM_TRANSLATOR) into $(CACHE)"; \
		python3 -m venv $(TEMPLATES) && \
		$(TEMPLATES)/bin/pip install --quiet --disable-pip-version-check cfn-lint==$(CFN_LINT) aws-sam-translator==$(SAM_TRANSLATOR); }
	$(TEMPLATES)/bin/cfn-lint --include-checks I --regions us-east-1 eu-central-1 ap-southeast-2 cn-north-1 us-gov-west-1 -- template.yaml deploy/table.yaml deploy/part.yaml deploy/cache.yaml examples/own-function/template.yaml examples/reindex/template.yaml
	cd examples/locktable && GOWORK=off go test ./...

size: ## sizes of the function binaries, fails past their budgets
	@sh internal/size/size.sh

verify: install-servers ## all of the verification; KEEP=1 writes docs/verification.md; GATE=1: a part, with one outcome
	@.ci/progress 0 sh internal/testservers/dafny.sh
	cd verify && go run . $(if $(KEEP),-keep) $(if $(GATE),-gate)

soak: install-servers ## the verification with new seeds for TIME=1h
	@.ci/progress 0 sh internal/testservers/dafny.sh
	cd verify && go run . -soak $(or $(TIME),1h)

mutants: install-servers ## plant every bug (5 min)
	cd verify/mutants && MUTANTS=all go test -run TestMutants -count=1 -timeout 1h

fuzz: ## every fuzz function, FUZZTIME=20s each; part of make verify
	cd verify && FUZZTIME=$(or $(FUZZTIME),20s) go test ./fuzzall -run TestFuzz -v -count=1 -timeout 1h

bench: install-servers ## speed against raw requests and other locks, as ratios; KEEP=1 writes docs/benchmarks.md
	cd bench && go test -v -count=1 -timeout 30m . $(if $(KEEP),-keep ../docs/benchmarks.md)
