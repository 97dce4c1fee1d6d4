# The commands of the project; `make` alone lists them.

SHELL := /bin/bash
# rustup's folder, for shells that do not have it on their PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help run test matrix quiet bench models fuzz chaos mutations e2e prepare build

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

run: build ## Run etcd, a kube-apiserver and the controller on this machine (ARGS="--members 3" passes options on)
	@exec "$${CARGO_TARGET_DIR:-target}/debug/quorate" dev $(ARGS)

test: build ## Check format and lints, run all tests (ARGS="--lib gate" selects some)
	@exec .ci/test $(ARGS)

matrix: prepare ## Run what needs etcd on each release of etcd with each kind of credentials (ARGS="newest tls roles" chooses some)
	@exec .ci/matrix $(ARGS)

quiet: build ## An hour of ordinary work with failovers and an upgrade under the shipped alerts, none of which may fire (MINUTES=60)
	@exec env QUORATE_QUIET_MINUTES=$(or $(MINUTES),60) \
		cargo test --locked --package quorate-tests --test integration -- --nocapture monitoring::quiet::

bench: prepare ## Run the benchmarks of BENCHMARKS.md (ARGS=failover runs those of that name; ETCD=next or newest on that etcd)
	@folder=$(if $(ETCD),"$$(.ci/etcd $(ETCD))") || exit 1; \
	PATH="$${folder:+$$folder:}$$PATH" exec cargo bench --locked -- $(ARGS)

models: prepare ## Explore the models of the gate and of membership in sizes that take minutes (ARGS=gate::model explores one)
	@MODELS=large exec cargo test --locked --release --package quorate --lib -- \
	  --nocapture --test-threads 1 $(or $(ARGS),gate::model model::checked)

fuzz: ## Feed the decoders with inputs that an engine makes (TARGET=nodes feeds one; RUNS=1000000 or SECONDS=60 bounds each)
	@WITH_CXX=1 .ci/prepare
	@exec fuzz/run $(if $(TARGET),--target $(TARGET)) $(if $(RUNS),--runs $(RUNS)) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

e2e: build ## The shipped Deployment on real kubelets, as root (ARGS=external runs one overlay; docs/e2e.md)
	@exec e2e/run $(ARGS)

chaos: build ## Break a whole cluster from a seed and check its history, until one run fails (SEED=7 FAULTS=200; FAULTS=0 MINUTES=10 leaves it alone; KEEP=1)
	@exec "$${CARGO_TARGET_DIR:-target}/debug/quorate-chaos" $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(KEEP),--keep) $(ARGS)

# Its own directory, since what is built there runs nowhere else.
MUTATED := $(or $(CARGO_TARGET_DIR),target)/mutations

mutations: build ## Take the guards of the product out, one after the other, until the checker of chaos finds it (ARGS="--guards Fence,Window")
	@QUORATE_MUTATIONS=1 CARGO_TARGET_DIR=$(MUTATED) cargo build --locked --package quorate --bin quorate
	@exec "$${CARGO_TARGET_DIR:-target}/debug/quorate-mutations" --program $(MUTATED)/debug/quorate $(ARGS)

prepare: ## Install what is missing on this machine (Debian; root or sudo)
	@.ci/prepare

build: ## The same, and build the programs
	@.ci/prepare cargo build --locked --workspace --bins
