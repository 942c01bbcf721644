#!/usr/bin/env bash
# Every test: first, on all cores, those that need no cluster; then, one after another, those that start real programs.
# Arguments go to both runs; they may choose tests of one kind only.
#
# Ends with 0 when all passed, 1 when tests failed, 2 when a run broke off (a crash, a usage error): then tests may not have run.
set -uo pipefail
cd "$(dirname "$0")/.."
ran=0
result=0

pytest() {
  .venv/bin/python -m pytest "$@"
  local status=$?
  case $status in
    0) ran=1 ;;
    1) ran=1; if [ $result -eq 0 ]; then result=1; fi ;;
    5) ;; # no test of this kind was chosen
    *) echo "pytest broke off with status $status" >&2; result=2 ;;
  esac
}

pytest -q -n auto --dist worksteal -m "not cluster and not e2e and not real_engine and not bench" "$@"
pytest -m "(cluster or e2e) and not real_engine and not bench" "$@"
if [ $ran -eq 0 ] && [ $result -eq 0 ]; then
  echo "no test was chosen" >&2
  result=2
fi
exit $result
