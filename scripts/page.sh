#!/bin/bash
# Serves a page that trains in the browser, one bundle after another: page.sh [FOLDER]
#
#   plain-32x512       a GPT of 13.1 million parameters with AdamW, 32 sequences: ends in bad_alloc
#   rewritten-32x512   the same rewritten to a budget of 1 GiB: trains
#   gpt2-1x512         GPT-2 124M, seeded weights, SGD, rewritten
#   rewritten-24x512   24 sequences, rewritten to a budget of 1 GiB
#   plain-24x512       the same only put in order: the heap is nearly full
#
# A WebAssembly heap ends at 4 GiB. A step takes minutes. PORT is 8000 unless set.
# scripts/runtimes.py opens this page in headless Chromium and keeps what it measured.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:-out/page}
remat=${REMAT:-bin/remat}
runtimes=${REMAT_RUNTIMES:-${XDG_CACHE_HOME:-$HOME/.cache}/remat/runtimes}
web=$runtimes/npm/node_modules/onnxruntime-web/dist
[ -d "$web" ] || { echo "no onnxruntime-web: make test-runtimes installs it" >&2; exit 1; }
mkdir -p "$to"

# bundle NAME OPTIMIZER "FLAGS OF MODEL" FLAGS OF REWRITE...
bundle() {
	local name=$1 optimizer=$2 model=$3
	[ -e "$to/$name" ] && return
	shift 3
	# shellcheck disable=SC2086 # several words
	"$remat" --quiet model $model -o "$to/$name.forward.onnx" >&2
	"$remat" --quiet grad "$to/$name.forward.onnx" --optimizer "$optimizer" -o "$to/$name.step.onnx" >&2
	"$remat" --quiet rewrite "$to/$name.step.onnx" --bundle "$to/$name" --for web "$@" >&2
	rm -f "$to/$name".*.onnx "$to/$name".*.safetensors
}
small="gpt2-tiny --layers 6 --hidden 256 --heads 4 --vocab 32000 --seq 512"
bundle plain-32x512 adamw "$small --batch 32" --strategy none
bundle rewritten-32x512 adamw "$small --batch 32" --budget 1GiB
bundle gpt2-1x512 sgd "gpt2 --batch 1 --seq 512" --strategy optimal
bundle rewritten-24x512 adamw "$small --batch 24" --budget 1GiB
bundle plain-24x512 adamw "$small --batch 24" --strategy none
exec node examples/web/serve.mjs --ort "$web" --port "${PORT:-8000}" "$to"/{plain-32x512,rewritten-32x512,gpt2-1x512,rewritten-24x512,plain-24x512}
