#!/usr/bin/env bash
# The checkpoints that we write load in Hugging Face transformers with no edit, and give the same logits there.
# tests/unit/test_transformers.c writes them (each fixture's model, trained a little); scripts/check_transformers.py compares.
cd "$(dirname "$0")/../.." || exit 1
fixtures=(tests/fixtures/*/)

python=${PYTHON:-}
for candidate in .venv/bin/python python3; do
  [ -n "$python" ] || ! command -v "$candidate" >/dev/null || python=$candidate
done
if [ -z "$python" ] || ! "$python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
  echo "ok - our checkpoints load in transformers # SKIP torch and transformers are not installed" \
    "(pip install -r scripts/requirements.txt)"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
writer=$(dirname "$(readlink -f "${TRAIN:-./train}")")/tests/unit/test_transformers
if ! said=$(COMPARE_DIR=$folder "$writer" 2>&1); then
  echo "not ok - a checkpoint of every fixture is written: $writer said: ${said//$'\n'/; }"
  exit 1
fi

failed=0
for fixture in "${fixtures[@]}"; do
  name=$(basename "$fixture")
  if said=$("$python" scripts/check_transformers.py "$folder/$name/latest" \
    --logits "$folder/$name/logits.safetensors" 2>&1); then
    echo "# ${said##*"$folder/"}"
    echo "ok - transformers_loads_our_checkpoint_of_$name"
  else
    echo "not ok - transformers_loads_our_checkpoint_of_$name: ${said//$'\n'/; }"
    failed=1
  fi
done
exit $failed
