#!/usr/bin/env bash
# Exports of transformers through the whole way on the CPU: grad, plan, rewrite,
# compare; gradients must agree within 1e-5 of the largest.
#
#     scripts/export_gpt2.py exports --model gpt2 --seq 512
#     scripts/export_gpt2.py exports --model gpt2-medium --seq 512
#     scripts/validate_exports.sh exports [MODEL-EXPORTER …]
#
# For every MODEL-EXPORTER.onnx in the folder: the training graph as derived, put
# in order, and with STRATEGY (default "full --chunk-loss auto"), the logits taken
# off both, and MODEL-EXPORTER.json with what compare says. GRAD are flags of
# remat grad ("--optimizer adamw"), OPTIONS of remat itself.
set -eu -o pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?usage: validate_exports.sh FOLDER [NAME …]}
shift
remat=${REMAT:-$here/../bin/remat}
strategy=${STRATEGY:-full --chunk-loss auto}
[ $# -gt 0 ] || set -- $(cd "$folder" && ls -- *-torchscript.onnx *-dynamo.onnx 2>/dev/null | sed 's/\.onnx$//')
[ $# -gt 0 ] || { echo "validate_exports: $folder holds no export (scripts/export_gpt2.py makes them)" >&2; exit 2; }

bad=0
for name; do
	model=$folder/$name
	echo "== $name"
	run() { "$remat" --quiet ${OPTIONS:-} "$@"; }
	if run grad "$model.onnx" --loss loss ${GRAD:-} -o "$model.train.onnx" &&
		run rewrite "$model.train.onnx" --strategy none --drop-output logits -o "$model.plain.onnx" &&
		run plan "$model.train.onnx" --strategy ${strategy%% *} -o "$model.plan.json" >"$model.plan.txt" &&
		run rewrite "$model.train.onnx" --strategy $strategy --drop-output logits -o "$model.small.onnx" &&
		run --json compare "$model.train.onnx" "$model.plain.onnx" "$model.small.onnx" --feeds "$folder/${name%-*}-feeds.npz" \
			--steps 2 --tolerance 1e-5 >"$model.json.part"; then
		mv "$model.json.part" "$model.json"
		python3 - "$model.json" <<-'PY'
			import json, sys
			d = json.load(open(sys.argv[1]))
			for m, p in zip(d["models"][1:], d["pairs"]):
			    peaks = [x["memory"]["live_peak_bytes"] / 1e6 for x in (d["models"][0], m)]
			    print(f"{m['model']}: live peak {peaks[0]:.1f} -> {peaks[1]:.1f} MB, saved {100 * p['saving']:.1f} %, overhead "
			          f"{100 * p['overhead']:.1f} %, gradients within {p['max_relative_gradient_difference']:.1e}")
		PY
	else
		echo "validate_exports: $name failed" >&2
		bad=1
	fi
done
exit $bad
