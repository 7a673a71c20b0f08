#!/usr/bin/env bash
# The runs behind docs/results on one GPU: bash bench/results.sh PAGE DATA OUT
#
#   sparse    sparse post-training and its twin side by side, then circuits      (DATA/corpus/)
#   fillers   MATH-500, arithmetic and GSM8K; tokens a second                    (DATA/math500/, gsm8k/)
#   speed     the rows of bench/race.py, growth, the largest sweeps              (no data)
#
# Trainings and studies go on where they were interrupted, benchmarks begin again. HEADLAB names the command (default: headlab).
set -euo pipefail
page=${1:?which page: sparse, fillers or speed} data=${2:-} out=${3:-results}
here=$(cd "$(dirname "$0")" && pwd)
headlab=${HEADLAB:-headlab} python=${PYTHON:-python}

sparse() {
  local training=(
    smollm2 --data "$data/corpus/novels.txt.gz" --data "$data/corpus/web-docs.txt.gz"
    --eval "$data/corpus/wikitext2-test.txt" --levels 30,10,3 --steps 1000 --batch 128
    --context 128 --bound 0.3 --beta 0.1 --gate-rate 0.02 --every "${EVERY:-100}"
    --keep-every "${KEEP_EVERY:-500}"
  )
  $headlab sparsify "${training[@]}" --twin-only --out "$out/twin" > "$out/twin.log" 2>&1 &
  local twin=$!
  trap 'kill $twin 2>/dev/null || true' EXIT
  $headlab sparsify "${training[@]}" --out "$out/sparse"
  wait $twin || { tail -n 5 "$out/twin.log" >&2; exit 1; }
  trap - EXIT
  $headlab run circuits --pairs "smollm2:$out/sparse:$out/twin/twin" \
    --tasks ioi,ioi-long,greater-than,docstring --methods patch,patch-per-prompt \
    --n 100 --dtype bfloat16 --out "$out/circuits"
}

fillers() {
  local all=(--models smollm2 --conditions none,mless,mful,gap,random,arm --heads L0
    --attention-n 100 --dtype bfloat16)
  $headlab run fillers "${all[@]}" --chat --task math500 --data "$data" --n 500 \
    --max-new-tokens 512 --out "$out/math500"
  $headlab run fillers "${all[@]}" --chat --task arithmetic --n 240 \
    --max-new-tokens 256 --out "$out/arithmetic"
  $headlab run fillers "${all[@]}" --task gsm8k --data "$data" --n 1319 \
    --max-new-tokens 320 --out "$out/gsm8k"
  $python "$here/fillers.py" --data "$data" --task math500 --new 256
}

speed() {
  $python "$here/race.py" --rows all --out "$out/race.json"
  $python "$here/growth.py" --shape llama-3.2-1b --out "$out/growth.json"
  $python "$here/growth.py" --large all --out "$out/growth.json"
  $python "$here/picture.py" "$out/race.json" "$out/growth.json" --out "$out/benchmarks.png"
}

case $page in
  sparse | fillers | speed) mkdir -p "$out" && $page ;;
  *) echo "no page $page: sparse, fillers or speed" >&2; exit 2 ;;
esac
