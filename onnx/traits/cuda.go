package traits

// What the CUDA provider's kernels do to memory where it differs from the CPU's:
// which run in place, what they read and write in the host's memory, and which nodes
// the provider leaves to the CPU. What they borrow of the device stands in scratchcuda.go.
//
// Found by running one-node models on the provider under the counting allocator
// (package runtime/predict runs the probe again), 1.31.1.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// inPlaceOnCUDA lists the operators whose CUDA kernels may write over input 0.
var inPlaceOnCUDA = map[key]bool{
	{"", "Elu"}: true, {"", "Gelu"}: true, {"", "HardSigmoid"}: true, {"", "LeakyRelu"}: true, {"", "Relu"}: true, {"", "Selu"}: true,
	{"", "Shrink"}: true, {"", "Sigmoid"}: true, {"", "Softplus"}: true, {"", "Softsign"}: true, {"", "Tanh"}: true,
	{"com.microsoft", "Gelu"}: true, {"com.microsoft", "QuickGelu"}: true,
	{"", "ThresholdedRelu"}: true, {"", "Trilu"}: true, {"", "ScatterND"}: true,
}

// OfCUDA is Of for the kernels of the CUDA provider.
func OfCUDA(n *onnx.Node) (Traits, bool) {
	t, known := Of(n)
	k := key{n.Domain(), n.OpType()}
	t.InPlace, t.Inner = nil, cudaScratch[k] != nil
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
// kernel for it: of recurrences and transposed convolutions cuDNN has some only.
func RefusedByCUDA(n *onnx.Node) bool {
	switch {
	case n.Is("LSTM", "GRU", "RNN"):
		return n.Has("activation_alpha") || n.Has("activation_beta") || n.Has("clip") || n.Has("activations") ||
			n.Is("GRU") && n.Int("linear_before_reset", 0) != 1 ||
			n.Is("LSTM") && (n.Int("input_forget", 0) != 0 || n.In(7) != nil)
	case n.Is("ConvTranspose"):
		return KeepsExtents(n.Str("auto_pad", "NOTSET")) || !evenPads(n)
	}
	return false
}

// KeepsExtents reports an auto_pad that has a window make one element of each stride.
func KeepsExtents(mode string) bool { return mode == "SAME_UPPER" || mode == "SAME_LOWER" }

// SplitPads splits the padding that SAME_UPPER, SAME_LOWER or output_shape stand for: the
// odd one is behind with SAME_UPPER, and else before.
func SplitPads(total int64, mode string) (before, after int64) {
	if mode == "SAME_UPPER" {
		return total / 2, total - total/2
	}
	return total - total/2, total / 2
}

// TransposedPads are the pads, those before each axis and then those behind, of a ConvTranspose that
// is given its output's extents, or a rule for them, in place of pads: its output's type has them. What an
// output has beyond its windows is a number below zero behind. Nil where an extent is not known.
func TransposedPads(n *onnx.Node) []int64 {
	if n.In(0) == nil || n.In(1) == nil || n.Out(0) == nil {
		return nil
	}
	x, w, y := n.In(0).Type.Shape, n.In(1).Type.Shape, n.Out(0).Type.Shape
	k := len(x) - 2
	if k < 1 || len(w) != k+2 || len(y) != k+2 {
		return nil
	}
	of := func(name string, i int, otherwise int64) int64 {
		if list := n.Ints(name); len(list) == k {
			return list[i]
		}
		return otherwise
	}
	mode := n.Str("auto_pad", "NOTSET")
	pads := make([]int64, 2*k)
	for i := range k {
		in, okIn := x[i+2].Int()
		kernel, okKernel := w[i+2].Int()
		out, okOut := y[i+2].Int()
		if !okIn || !okKernel || !okOut {
			return nil
		}
		total := (in-1)*of("strides", i, 1) + of("output_padding", i, 0) + (kernel-1)*of("dilations", i, 1) + 1 - out
		pads[i], pads[k+i] = SplitPads(max(total, 0), mode)
		pads[k+i] += min(total, 0)
	}
	return pads
}

// EvenRest is the output_padding with which a transposed window may pad behind as much as
// before, which CUDA wants; false where it pads more behind, or the rest would not be less
// than the stride.
func EvenRest(before, after, rest, stride int64) (int64, bool) {
	more := before - after
	return rest + more, more == 0 || more > 0 && rest+more < stride
}

// evenPads reports that as much is padded at the end of each axis as at its beginning.
func evenPads(n *onnx.Node) bool {
	pads := n.Ints("pads")
	half := len(pads) / 2
	return slices.Equal(pads[:half], pads[half:])
}

// ComputesStatistics reports a BatchNormalization that normalizes with the statistics of
// its input: it says so, or, before opset 14, returns statistics. From there on CUDA's
// kernel refuses it.
func ComputesStatistics(n *onnx.Node) bool {
	return n.Is("BatchNormalization") && (n.Int("training_mode", 0) != 0 || n.Out(1) != nil || n.Out(2) != nil)
}
