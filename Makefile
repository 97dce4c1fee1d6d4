# The commands of the project; `make` alone lists them.

SHELL := /bin/bash
# rustup's folder, for shells that do not have it on their PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help run test bench prepare build

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

run: build ## Run etcd, a kube-apiserver and the controller on this machine (ARGS="--members 3" passes options on)
	@exec "$${CARGO_TARGET_DIR:-target}/debug/quorate" dev $(ARGS)

test: build ## Check format and lints, run all tests (ARGS="--lib gate" selects some)
	@exec .ci/test $(ARGS)

bench: prepare ## Run the benchmarks of BENCHMARKS.md (ARGS=failover runs those of that name)
	@exec cargo bench --locked -- $(ARGS)

prepare: ## Install what is missing on this machine (Debian; root or sudo)
	@.ci/prepare

build: ## The same, and build the programs
	@.ci/prepare cargo build --locked --workspace --bins
