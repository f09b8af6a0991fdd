package traits

// What the CUDA provider's kernels do to memory where it differs from the
// CPU's: which run in place, as their registrations say, and what they allocate
// of their stream's allocator. Read in ONNX Runtime's sources,
// onnxruntime/core/providers/cuda, and not measured on a device yet:
//
//	in place       activation/activations.cc and tensor/scatter_nd.cc register
//	               MayInplace(0, 0); unary and binary elementwise operators,
//	               Softmax, Gelu, LayerNormalization do not; nor do Cast, Clip,
//	               ScatterElements in the versions that were read
//	views          as on the CPU
//	Softmax        math/softmax.cc: off the last axis, input and result transposed
//	norms, Where   nothing
//	ReduceSum      reduction/reduction_functions.cu: a sum over leading axes
//	               needs nothing, over trailing axes partial sums of each row
//	other sums     cuDNN's workspace, which cuDNN says when it is asked
//	Conv           cuDNN's workspace
//
// What cuBLAS and cuDNN hold for their handles is outside of that allocator.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// inPlaceOnCUDA lists the operators whose CUDA kernels may write over input 0.
var inPlaceOnCUDA = map[key]bool{
	{"", "Elu"}: true, {"", "Gelu"}: true, {"", "HardSigmoid"}: true, {"", "LeakyRelu"}: true, {"", "Relu"}: true, {"", "Selu"}: true,
	{"", "Shrink"}: true, {"", "Sigmoid"}: true, {"", "Softplus"}: true, {"", "Softsign"}: true, {"", "Tanh"}: true,
	{"", "ThresholdedRelu"}: true, {"", "Trilu"}: true, {"", "ScatterND"}: true,
}

// OfCUDA is Of for the kernels of the CUDA provider.
func OfCUDA(n *onnx.Node) (Traits, bool) {
	if n.Is("MemcpyFromHost", "MemcpyToHost") { // what ONNX Runtime puts in
		return Traits{Op: n.OpType(), Deterministic: true, Cost: Copy}, true
	}
	t, known := Of(n)
	k := key{n.Domain(), n.OpType()}
	t.InPlace, t.Inner = nil, cudaScratchRules[k] != nil
	if inPlaceOnCUDA[k] {
		t.InPlace = first
	}
	if t.Cost != View {
		t.Alias = nil // of the CPU's kernels
	}
	return t, known
}

// hostInputs lists, by operator, the inputs that its CUDA kernel reads in the host's
// memory: sizes, axes, counts. Of an input without a position of its own in the list,
// a kernel reads the device's.
var hostInputs = map[string][]int{
	"ConstantOfShape": {0}, "CumSum": {1}, "Dropout": {1, 2}, "Expand": {1}, "If": {0}, "Loop": {0, 1},
	"MatMulInteger": {2, 3}, "NonMaxSuppression": {2, 3, 4}, "OneHot": {1, 2}, "Pad": {1, 2}, "Range": {0, 1, 2},
	"ReduceL1": {1}, "ReduceL2": {1}, "ReduceLogSum": {1}, "ReduceLogSumExp": {1}, "ReduceMax": {1},
	"ReduceMean": {1}, "ReduceMin": {1}, "ReduceProd": {1}, "ReduceSum": {1}, "ReduceSumSquare": {1},
	"Reshape": {1}, "Resize": {1, 2, 3}, "Slice": {1, 2, 3, 4}, "Split": {1}, "Squeeze": {1}, "Tile": {1},
	"TopK": {1}, "Trilu": {1}, "Unsqueeze": {1}, "Upsample": {1}, "MemcpyFromHost": {0},
}

// HostInputCUDA reports that the node's CUDA kernel reads input i in the host's memory.
func HostInputCUDA(n *onnx.Node, i int) bool {
	return n.Domain() == "" && slices.Contains(hostInputs[n.OpType()], i)
}

// HostOutputCUDA reports that the node's CUDA kernel writes output i to the host's memory.
func HostOutputCUDA(n *onnx.Node, i int) bool { return n.Is("Shape", "Size", "MemcpyToHost") }

// RefusedByCUDA reports a node that the CUDA provider leaves to the CPU though it has a
// kernel of its name: a recurrence that cuDNN does not have.
func RefusedByCUDA(n *onnx.Node) bool {
	return n.Is("GRU") && n.Int("linear_before_reset", 0) == 0
}

var cudaScratchRules = map[key]scratchRule{
	{"", "Softmax"}:                   softmaxScratch,
	{"", "LogSoftmax"}:                softmaxScratch,
	{"", "ReduceSum"}:                 cudaSumScratch,
	{"", "ReduceMean"}:                byCuDNN,
	{"", "ReduceMax"}:                 byCuDNN,
	{"", "ReduceMin"}:                 byCuDNN,
	{"", "ReduceProd"}:                byCuDNN,
	{"", "ReduceL1"}:                  byCuDNN,
	{"", "ReduceL2"}:                  byCuDNN,
	{"", "ReduceSumSquare"}:           byCuDNN,
	{"", "ReduceLogSum"}:              byCuDNN,
	{"", "ReduceLogSumExp"}:           byCuDNN,
	{"", "ArgMax"}:                    byCuDNN,
	{"", "ArgMin"}:                    byCuDNN,
	{"", "Conv"}:                      byCuDNN,
	{"", "ConvTranspose"}:             byCuDNN,
	{"com.microsoft", "FusedConv"}:    byCuDNN,
	{"", "BatchNormalization"}:        byCuDNN,
	{"", "LSTM"}:                      byCuDNN,
	{"", "GRU"}:                       byCuDNN,
	{"", "RNN"}:                       byCuDNN,
	{"", "Einsum"}:                    byCuDNN,
	{"", "Resize"}:                    byCuDNN,
	{"", "Upsample"}:                  byCuDNN,
	{"", "TopK"}:                      byCuDNN,
	{"", "NonZero"}:                   byCuDNN,
	{"", "Compress"}:                  byCuDNN,
	{"", "Attention"}:                 byCuDNN,
	{"", "If"}:                        byCuDNN,
	{"", "Loop"}:                      byCuDNN,
	{"", "Scan"}:                      byCuDNN,
	{"", "InstanceNormalization"}:     byCuDNN,
	{"", "GroupNormalization"}:        byCuDNN,
	{"", "MeanVarianceNormalization"}: byCuDNN,
}

// ScratchCUDA is Scratch for the kernels of the CUDA provider.
func ScratchCUDA(n *onnx.Node) (*Kernel, bool) {
	rule, ok := cudaScratchRules[key{n.Domain(), n.OpType()}]
	if !ok {
		_, known := OfCUDA(n)
		return nil, known
	}
	var k Kernel
	if !rule(n, 1, &k) {
		return nil, false
	}
	if len(k.Acts) == 0 {
		return nil, true
	}
	return &k, true
}

// byCuDNN: a workspace whose size the library says on the device.
func byCuDNN(*onnx.Node, int, *Kernel) bool { return false }

// Blocks of threads of a sum over rows: reduction_functions.cu.
const (
	cudaWarp        = 32
	cudaPerThread   = 4
	cudaMostWarps   = 8
	cudaMostBlocks  = 256
	cudaCounter     = 4  // bytes
	cudaMostAligned = 16 // bytes
)

// cudaSumScratch: a matrix whose rows are summed up in blocks keeps a partial
// sum for each block and a counter for each row. Axes of extent 1 do not count.
func cudaSumScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, okX := dims(n.In(0))
	axes, okAxes := sumAxes(n, len(x))
	if !okX || !okAxes {
		return false
	}
	if product(x) == 0 {
		return true
	}
	var summed []bool
	for i, d := range x {
		if d != 1 {
			summed = append(summed, slices.Contains(axes, int64(i)))
		}
	}
	edge := 0 // from here on the other kind of axes
	for edge < len(summed) && summed[edge] == summed[0] {
		edge++
	}
	switch {
	case len(summed) == 0 || edge == len(summed) && !summed[0]:
		return true // a copy
	case edge == len(summed) || slices.Contains(summed[edge:], summed[0]):
		return false // all axes, or mixed ones: cuDNN
	case summed[0]:
		return true
	}
	rows, columns, at := int64(1), int64(1), 0
	for _, d := range x {
		if d == 1 {
			continue
		}
		if at < edge {
			rows *= d
		} else {
			columns *= d
		}
		at++
	}
	warps := min(cudaMostWarps, max(1, columns/(cudaPerThread*cudaWarp)))
	blocks := min(cudaMostBlocks, max(1, columns/(cudaPerThread*cudaWarp*warps)))
	size := max(elementBytes(n.In(0)), floatBytes)
	k.take(0)
	k.borrow(rows*blocks*size + rows*cudaCounter + cudaMostAligned - 1)
	return true
}

// sumAxes are the axes that a reduction sums over; false where they are not
// constant, or all.
func sumAxes(n *onnx.Node, rank int) ([]int64, bool) {
	axes := n.Ints("axes")
	if v := n.In(1); v != nil {
		t := v.Init
		if t == nil && v.Producer != nil && v.Producer.Is("Constant") {
			t = v.Producer.TensorAttr("value")
		}
		if t == nil {
			return nil, false
		}
		list, err := t.Int64s()
		if err != nil {
			return nil, false
		}
		axes = list
	}
	axes = slices.Clone(axes)
	for i := range axes {
		if axes[i] < 0 {
			axes[i] += int64(rank)
		}
	}
	return axes, len(axes) > 0
}
