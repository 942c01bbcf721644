#!/usr/bin/env bash
# Every test: first, on all cores, those that need no cluster; then, one after another, those that start real programs.
# Arguments go to both runs.
set -uo pipefail
cd "$(dirname "$0")/.."
pytest() { .venv/bin/python -m pytest "$@"; }
failed=0
pytest -q -n auto --dist worksteal -m "not cluster and not e2e and not real_engine and not bench" "$@" || failed=1
pytest -m "(cluster or e2e) and not real_engine and not bench" "$@" || failed=1
exit $failed
