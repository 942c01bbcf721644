#!/usr/bin/env bash
# Make .venv: uv (pinned, from the package index), every locked package with its hash, our components editable.
# Needs Python 3.11 or newer and nothing else. Run again after a change of a lock or a pyproject; it is quick.
set -euo pipefail
cd "$(dirname "$0")/.."
UV_VERSION=0.13.9
export UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=${UV_LINK_MODE:-copy}

python=""
for candidate in "${PYTHON:-}" python3.14 python3.13 python3.12 python3.11 python3; do
  [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "bootstrap: no Python 3.11 or newer on PATH. Install one, or name it: make PYTHON=/path/to/python3.12" >&2
  exit 1
fi

step() { printf '[%s/3] %s\n' "$1" "$2"; }

uv=$(command -v uv || true)
if [ -z "$uv" ] || [ "$("$uv" --version | cut -d' ' -f2)" != "$UV_VERSION" ]; then
  uv=.tools/bin/uv
  if [ ! -x "$uv" ] || [ "$("$uv" --version | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    step 1 "uv $UV_VERSION into .tools (with $("$python" --version))"
    if ! said=$("$python" -m venv .tools 2>&1); then
      printf '%s\n' "$said" >&2
      echo "bootstrap: this Python cannot make a virtual environment; on Debian and Ubuntu install python3-venv." >&2
      exit 1
    fi
    .tools/bin/python -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
  fi
fi

step 2 "locked packages into .venv"
[ -x .venv/bin/python ] || "$uv" venv --quiet --python "$python" .venv
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock

step 3 "Forebay's components, editable"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation \
  -e ./api -e ./capacity -e ./operator -e ./router -e ./autoscaler -e ./simulator -e ./localcluster -e ./cli
touch .venv/.synced
