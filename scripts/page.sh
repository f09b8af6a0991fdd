#!/bin/bash
# Serves a page that trains a GPT of 13.1 million parameters at 24 x 512 in the browser, as
# derived and rewritten to a budget of 1 GiB, one after the other: page.sh [FOLDER]
# The first takes 3,876 MB of a heap that ends at 4,096, predicted 3,777. A step takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:-out/page}
runtimes=${REMAT_RUNTIMES:-${XDG_CACHE_HOME:-$HOME/.cache}/remat/runtimes}
web=$runtimes/npm/node_modules/onnxruntime-web/dist
[ -d "$web" ] || { echo "no onnxruntime-web: make test-runtimes installs it" >&2; exit 1; }
mkdir -p "$to"
if [ ! -e "$to/rewritten" ]; then
	bin/remat model gpt2-tiny --layers 6 --hidden 256 --heads 4 --vocab 32000 --batch 24 --seq 512 -o "$to/gpt.onnx"
	bin/remat grad "$to/gpt.onnx" --optimizer adamw -o "$to/step.onnx"
	[ -e "$to/plain" ] || bin/remat rewrite "$to/step.onnx" --strategy none --bundle "$to/plain" --for web
	bin/remat rewrite "$to/step.onnx" --budget 1GiB --bundle "$to/rewritten" --for web
fi
exec node examples/web/serve.mjs --ort "$web" --port "${PORT:-8000}" "$to/plain" "$to/rewritten"
