# Thin calls. `make help` lists them. A new machine needs Python 3.11+ and make; every other step is done here.
SHELL := /bin/bash
PY := .venv/bin/python
.DEFAULT_GOAL := help
# Tests and demo start hundreds of Python processes. Where the environment forbids Python to write bytecode, each would compile
# every module again, half a second of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.synced: requirements.lock pyproject.toml $(wildcard */pyproject.toml) scripts/bootstrap.sh
	@scripts/bootstrap.sh

.PHONY: setup
setup: .venv/.synced ## the Python environment, in .venv

.PHONY: programs
programs: .venv/.synced ## the Kubernetes programs, built once into a cache outside the checkout
	@.venv/bin/forebay cluster build

.PHONY: demo
demo: programs $(if $(filter real,$(ENGINE)),real-engine) ## the whole system under load (KEEP=1 leaves it up, SAMPLE=file.yaml, ENGINE=real)
	@$(if $(filter real,$(ENGINE)),eval "$$(scripts/real_engine.sh --env)";) \
	  .venv/bin/forebay demo $(if $(KEEP),--keep) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(ENGINE),--engine $(ENGINE))

.PHONY: real-engine
real-engine: ## a real vLLM on CPU with a tiny model (3 minutes, 6.5 GB), for ENGINE=real and the contract tests
	@scripts/real_engine.sh

.PHONY: test
test: programs ## every test, on real Kubernetes programs where one needs them, the end-to-end ones included
	@$(PY) scripts/run_tests.py $(ARGS)

.PHONY: check
check: .venv/.synced ## format, lint, strict types, import contracts, generated files, and the tests that need no cluster
	@scripts/check.sh

.PHONY: bench
bench: programs ## the measurements; results in build/bench
	@$(PY) -m pytest -m bench tests/bench

.PHONY: bench-router
bench-router: .venv/.synced ## the router beside others on one core; installs them; results in build/bench/router.md (ROUNDS=3, ROUTERS=a,b)
	@$(PY) -m tests.bench.routers --rounds $(or $(ROUNDS),3) $(if $(ROUTERS),--routers $(ROUTERS))

.PHONY: compiled-router
compiled-router: .venv/.synced ## the router compiled to machine code (needs a C compiler): build/compiled/forebay-router
	@$(PY) router/compiling.py build/compiled

.PHONY: test-compiled
test-compiled: compiled-router ## the router's tests against the compiled router
	@PYTHONPATH=build/compiled:$$PYTHONPATH $(PY) -m pytest -q tests/router -m "not cluster and not e2e and not real_engine and not bench" $(ARGS)

.PHONY: bench-autoscaler
bench-autoscaler: .venv/.synced ## scaling policies side by side in the fleet simulator (ARGS=--quick for a smoke test)
	@$(PY) -m tests.bench.autoscaler $(ARGS)

.PHONY: generate
generate: .venv/.synced ## write every generated file anew
	@$(PY) scripts/generate.py

.PHONY: format
format: .venv/.synced ## format the code
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix --quiet .

.PHONY: lock
lock: .venv/.synced ## resolve the dependencies anew into requirements.lock
	@scripts/lock.sh
