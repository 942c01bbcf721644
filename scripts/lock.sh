#!/usr/bin/env bash
# Resolve the workspace's dependencies and write requirements.lock: every package with its version and hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v .tools/bin/uv || command -v uv)
"$uv" lock "$@"
"$uv" export --quiet --frozen --all-packages --all-groups --no-emit-workspace --no-annotate --no-header \
  --format requirements.txt -o requirements.lock
# What each image installs: the part of the lock that its component needs.
for component in operator router autoscaler; do
  "$uv" export --quiet --frozen --package "forebay-$component" --no-dev --no-emit-workspace --no-annotate --no-header \
    --format requirements.txt -o "deploy/images/$component.txt"
done
# What compiles the router for its image.
"$uv" export --quiet --frozen --only-group compile --no-emit-workspace --no-annotate --no-header \
  --format requirements.txt -o deploy/images/compiler.txt
