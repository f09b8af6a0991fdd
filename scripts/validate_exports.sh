#!/usr/bin/env bash
# Exports of transformers, and joint graphs of other tools, through the whole way
# on the CPU: grad, plan, rewrite, compare.
#
#     scripts/export_gpt2.py exports --model gpt2 --seq 512
#     scripts/export_gpt2.py exports --model gpt2-medium --seq 512
#     scripts/validate_exports.sh exports [MODEL-EXPORTER …] [JOINT.onnx …]
#
# For every MODEL-EXPORTER.onnx in the folder: the training graph (GRAD, default
# "--optimizer sgd"; "--optimizer none" returns the gradients), as derived and with
# each of STRATEGY (default "none,full,sqrt,least"), the logits taken off those. A
# joint graph is compared as it is; JOINT.npz beside it feeds it. All that the graphs
# return must agree within 1e-5 of the largest; where nothing was chunked, updated
# parameters come out in the same bits, and so did the gradients. OPTIONS are flags
# of remat itself ("--threads 1"), STEPS of compare. OUT=FILE.md gets the table, with
# the machine and versions. All graphs of a model are in memory together: with the
# update in the graph, each with parameters of its own.
set -eu -o pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?usage: validate_exports.sh FOLDER [NAME …]}
shift
remat=${REMAT:-$here/../bin/remat}
grad=${GRAD---optimizer sgd}
IFS=, read -ra strategies <<<"${STRATEGY:-none,full,sqrt,least}"
[ $# -gt 0 ] || set -- $(cd "$folder" && ls -- *-torchscript.onnx *-dynamo.onnx 2>/dev/null | sed 's/\.onnx$//')
[ $# -gt 0 ] || { echo "validate_exports: $folder holds no export (scripts/export_gpt2.py makes them)" >&2; exit 2; }

run() { "$remat" --quiet ${OPTIONS:-} "$@"; }

# whole NAME: grad; plan and rewrite for each strategy; compare.
whole() {
	local model=$folder/$1 feeds=$folder/${1%-*}-feeds.npz plain=$folder/$1.train.onnx drop="--drop-output logits" written=() s
	if [ -f "$1" ]; then
		model=$folder/$(basename "$1" .onnx) feeds=${1%.onnx}.npz drop=
		plain=$model.joint.onnx
		cp "$1" "$plain" || return 1
	else
		run grad "$model.onnx" --loss loss $grad -o "$plain" || return 1
	fi
	for s in "${strategies[@]}"; do
		run --json plan "$plain" --strategy $s $drop -o "$model.$s.plan.json" >"$model.$s.planned.json" &&
			run rewrite "$plain" --plan "$model.$s.plan.json" -o "$model.$s.small.onnx" || return 1
		written+=("$model.$s.small.onnx")
	done
	run --json compare "$plain" "${written[@]}" --feeds "$feeds" --steps ${STEPS:-2} --tolerance 1e-5 >"$model.json.part" &&
		mv "$model.json.part" "$model.json"
}

bad=0
done=()
for name; do
	echo "== $name"
	if whole "$name"; then
		done+=("$folder/$(basename "$name" .onnx)")
	else
		echo "validate_exports: $name failed" >&2
		bad=1
	fi
done
[ ${#done[@]} -eq 0 ] || OUT=${OUT:-} GRAD=$grad python3 "$here/exports_table.py" "${strategies[*]}" "${done[@]}"
exit $bad
