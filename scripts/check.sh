#!/usr/bin/env bash
# What must hold before a change lands. Each step prints its name; the first that fails ends the run.
#   scripts/check.sh          everything, with the tests that need no cluster and take seconds
#   scripts/check.sh --static everything but tests
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
step() { printf '\n== %s\n' "$1"; shift; "$@"; }
step "format" $bin/ruff format --check --quiet .
step "lint" $bin/ruff check --quiet .
step "types" $bin/mypy
step "import contracts" $bin/lint-imports --no-logo
step "generated files" $bin/python scripts/generate.py --check
[ "${1:-}" = --static ] && exit 0
workers=$(($(nproc) * 3 / 2)) # many tests wait for a process or a clock rather than compute
step "tests without a cluster, but for the slow ones" $bin/python -m pytest -q -n "$workers" --dist worksteal \
  -m "not cluster and not e2e and not real_engine and not bench and not slow" "$@"
