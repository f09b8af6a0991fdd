#!/usr/bin/env bash
# Everything that is to be seen on a GPU, in under ten minutes:
#
#   small models: the losses of the CPU, in the memory that was predicted (scripts/gpu_check.py)
#   the tables of the encoder, the MLP and the heavy stack (scripts/tables.py)
#   PyTorch beside it, plain and checkpointed, where it is installed
#   GPT-2 124M and 355M: fp32, fp16, bf16, each plain, sqrt, full and optimal
#
#     make build && bin/remat doctor --install cuda
#     scripts/gpu-validate.sh --out results
#
# leaves in the folder one JSON and one HTML report for each model and
# precision, the tables, log.txt, and index.html over them all; summary.json
# says for each part done, failed or skipped. A part that fails is a row, not
# the end; once --minutes are spent no further part is started.
#
#   --dry-run    print the commands, run nothing
#   --cpu-smoke  the whole way on the CPU with tiny models (half types emulated)
#   --rehearse   the whole way without a GPU (remat --rehearse): memory, copies and
#                synchronizations at full size, in 60 minutes unless --minutes says
#                otherwise; what needs arithmetic is left out, and said to be
#   --device-memory SIZE  of the GPU that is rehearsed    --small  tiny models
#   --remat PATH the program       --python PATH  the Python that may have PyTorch
set -u -o pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=gpu-results remat=$here/../bin/remat python=python3 minutes= dry= smoke= rehearse= memory= small=
while [ $# -gt 0 ]; do
	case $1 in
	--out) out=${2:?--out DIR}; shift ;;
	--remat) remat=${2:?--remat PATH}; shift ;;
	--python) python=${2:?--python PATH}; shift ;;
	--minutes) minutes=${2:?--minutes N}; shift ;;
	--dry-run) dry=1 ;;
	--cpu-smoke) smoke=1 ;;
	--rehearse) rehearse=1 ;;
	--device-memory) memory=${2:?--device-memory SIZE}; shift ;;
	--small) small=1 ;;
	-h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'; exit 0 ;;
	*) echo "gpu-validate: $1: unknown option (--help lists them)" >&2; exit 2 ;;
	esac
	shift
done

# What differs between the real run and the tries without a GPU.
provider=cuda checks= models="gpt2 gpt2-medium" shape="--batch 4 --seq 512" steps=6 half= tables="mlp heavy encoder" on=(--provider cuda)
if [ -n "$smoke$small" ]; then
	models="gpt2-tiny" checks="--models mlp" shape="--batch 2 --seq 16" steps=2 tables="mlp --small"
fi
if [ -n "$smoke" ]; then
	provider=cpu half=--emulate on=(--provider cpu)
elif [ -n "$rehearse" ]; then
	steps=2 tables+=" --rehearse" on+=(--rehearse ${memory:+--device-memory "$memory"})
elif [ -n "$memory$small" ]; then
	echo "gpu-validate: --device-memory and --small go with --rehearse" >&2
	exit 2
fi
: "${minutes:=$([ -n "$rehearse" ] && echo 60 || echo 10)}"
start=$SECONDS

# left says how many seconds remain, at least one.
left() { local s=$((minutes * 60 - SECONDS + start)); echo $((s > 1 ? s : 1)); }

# part NAME COMMAND… runs one part under the clock and notes how it went.
part() {
	local name=$1 state=done begin=$SECONDS
	shift
	echo "+ $*"
	if [ -n "$dry" ]; then
		return 0
	elif [ "$(left)" -le 5 ]; then
		state=skipped
	elif ! timeout "$(left)" "$@" >"$out/$name.out" 2>>"$out/log.txt"; then
		state=failed
	fi
	echo "  $name: $state, $((SECONDS - begin)) s"
	echo "$name $state $((SECONDS - begin))" >>"$out/parts.txt"
	[ $state = done ]
}

# written MODEL writes the strategies in all precisions, side by side; on a GPU its cores
# would else wait for one search after another.
written() {
	local model=$1 precision strategy flags
	for precision in fp32 fp16 bf16; do
		flags=()
		[ "$precision" = fp32 ] || flags=(--precision "$precision" $half)
		for strategy in none sqrt full optimal; do
			part "$model-$precision-$strategy" "$remat" --quiet --provider $provider rewrite "$out/graphs/$model-train.onnx" \
				--strategy "$strategy" ${flags[@]+"${flags[@]}"} -o "$out/graphs/$model-$precision-$strategy.onnx" &
			[ -z "$dry" ] || wait
			[ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
		done
	done
	wait
}

# compared MODEL PRECISION compares the strategies that were written.
compared() {
	local model=$1 precision=$2 files=() strategy file
	for strategy in none sqrt full optimal; do
		file=$out/graphs/$model-$precision-$strategy.onnx
		[ -z "$dry" ] && [ ! -e "$file" ] || files+=("$file")
	done
	[ ${#files[@]} -gt 0 ] || return 0
	part "$model-$precision" "$remat" --quiet --json "${on[@]}" compare "${files[@]}" \
		--steps $steps --html "$out/$model-$precision.html" &&
		[ -z "$dry" ] && mv "$out/$model-$precision.out" "$out/$model-$precision.json"
	return 0
}

if [ -z "$dry" ]; then
	[ -x "$remat" ] || { echo "gpu-validate: $remat: no such program; make build, or --remat PATH" >&2; exit 2; }
	mkdir -p "$out/graphs" && : >"$out/log.txt" && : >"$out/parts.txt" || exit 2
	"$remat" --json ${rehearse:+"${on[@]}"} doctor >"$out/doctor.json" 2>>"$out/log.txt"
	# The smallest graph decides whether there is a device to validate on.
	"$remat" --quiet model mlp --hidden 16 --layers 2 -o "$out/graphs/probe.onnx" >/dev/null 2>>"$out/log.txt"
	if ! why=$("$remat" --quiet "${on[@]}" run "$out/graphs/probe.onnx" 2>&1 >/dev/null); then
		echo "gpu-validate: provider $provider does not run here: $why (--rehearse and --cpu-smoke try the way without a GPU)" >&2
		exit 2
	fi
	nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$out/gpu.txt" 2>/dev/null
fi

if [ -z "$rehearse" ]; then
	part checks "$python" "$here/gpu_check.py" --remat "$remat" --provider $provider $checks --out "$out/graphs/checks"
	[ -n "$dry" ] || mv "$out/graphs/checks/gpu_check.json" "$out/" 2>/dev/null
fi
part tables "$python" "$here/tables.py" $tables --remat "$remat" --provider $provider --out "$out"
if [ -n "$rehearse" ]; then
	echo "  losses, gradients, times and PyTorch: left out; rehearsed: no numbers were computed"
	echo "arithmetic missing 0" >>"$out/parts.txt"
elif [ -z "$dry" ] && ! "$python" -c 'import torch, transformers' 2>/dev/null; then
	echo "  pytorch: not installed, left out"
	echo "pytorch skipped 0" >>"$out/parts.txt"
elif [ -z "$smoke" ]; then
	part pytorch "$python" "$here/../bench/torchside.py" --device cuda --models $models --batch 4 --seq 512 --json "$out/pytorch.json"
fi

for model in $models; do
	part "$model-model" "$remat" --quiet model "$model" $shape --no-weights -o "$out/graphs/$model.onnx" &&
		part "$model-grad" "$remat" --quiet grad "$out/graphs/$model.onnx" -o "$out/graphs/$model-train.onnx" || continue
	written "$model"
	for precision in fp32 fp16 bf16; do
		compared "$model" $precision
	done
done

[ -n "$dry" ] && exit 0
rm -rf "$out/graphs"
"$python" "$here/gpu_summary.py" "$out" $((SECONDS - start)) <"$out/parts.txt" || exit 1
! grep -q " failed " "$out/parts.txt"
