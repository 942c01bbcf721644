#!/usr/bin/env bash
# What must hold before a change lands. Each step prints its name; the first that fails ends the run.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
step() { printf '\n== %s\n' "$1"; shift; "$@"; }
step "format" $bin/ruff format --check --quiet .
step "lint" $bin/ruff check --quiet .
step "types" $bin/mypy
step "import contracts" $bin/lint-imports --no-logo
step "generated files" $bin/python scripts/generate.py --check
step "tests" $bin/python -m pytest -q -m "not e2e and not real_engine and not bench" "$@"
