package traits

import "github.com/onnx-remat/remat/onnx"

// MemoryVersion is the ONNX Runtime whose CPU kernels were probed; a test holds
// it to the one that is installed.
const MemoryVersion = "1.31.1"

// memoryRow is what the kernels of one operator do to memory.
type memoryRow struct {
	domain, op     string
	alias, inPlace []Pair
	inner          bool
}

// expanded lists the operators without a CPU kernel: ONNX Runtime replaces
// them by others when it loads a file, at every level.
var expanded = []key{
	{"", "CastLike"}, {"", "CenterCropPad"}, {"", "GroupNormalization"}, {"", "HardSwish"},
	{"", "Mish"}, {"", "NegativeLogLikelihoodLoss"}, {"", "SoftmaxCrossEntropyLoss"}, {"", "Swish"},
}

var first = []Pair{{0, 0}}

// memory lists the operators that do more than allocate their outputs, as
// found by running one-node models under the counting allocator (a test of
// package runtime/predict runs the probe again). Attributes do not matter, and the
// element type only where kernels are registered apart: ONNX Runtime plans reuse by
// the kernel's registration.
var memory = []memoryRow{
	{"", "Reshape", first, nil, false},
	{"", "Squeeze", first, nil, false},
	{"", "Unsqueeze", first, nil, false},
	{"", "Flatten", first, nil, false},
	{"", "Identity", first, nil, false},
	{"", "Cast", nil, first, false},
	{"", "Celu", nil, first, false},
	{"", "Clip", nil, first, false},
	{"", "Elu", nil, first, false},
	{"", "HardSigmoid", nil, first, false},
	{"", "LeakyRelu", nil, first, false},
	{"", "LogSoftmax", nil, first, true},
	{"", "Relu", nil, first, false},
	{"", "Scatter", nil, first, false},
	{"", "ScatterElements", nil, first, false},
	{"", "Selu", nil, first, false},
	{"", "Shrink", nil, first, false},
	{"", "Sigmoid", nil, first, false},
	{"", "Softmax", nil, first, true},
	{"", "Softplus", nil, first, false},
	{"", "Softsign", nil, first, false},
	{"", "Tanh", nil, first, false},
	{"", "TensorScatter", nil, first, false},
	{"", "ThresholdedRelu", nil, first, false},
	{"", "Trilu", nil, first, false},
	{"", "Where", nil, nil, true},
	{"", "Max", nil, nil, true},
	{"", "Min", nil, nil, true},
	{"", "Sum", nil, nil, true},
	{"", "Mean", nil, nil, true},
	{"", "Conv", nil, nil, true},
	{"", "ConvTranspose", nil, nil, true},
	{"", "BatchNormalization", []Pair{{3, 1}, {4, 2}}, nil, true},
	{"", "Hardmax", nil, nil, true},
	{"", "LRN", nil, nil, true},
	{"", "Multinomial", nil, nil, true},
	{"", "MeanVarianceNormalization", nil, nil, true},
	{"", "LayerNormalization", nil, nil, true},
	{"", "RMSNormalization", nil, nil, true},
	{"", "SimplifiedLayerNormalization", nil, nil, true},
	{"com.microsoft", "SkipLayerNormalization", nil, nil, true},
	{"com.microsoft", "SkipSimplifiedLayerNormalization", nil, nil, true},
	{"com.microsoft", "BiasGelu", nil, nil, true},
	{"com.microsoft", "FastGelu", nil, nil, true},
	{"", "LSTM", nil, nil, true},
	{"", "GRU", nil, nil, true},
	{"", "RNN", nil, nil, true},
	{"", "Einsum", nil, nil, true},
	{"", "Attention", nil, nil, true},
	{"", "DeformConv", nil, nil, true},
	{"", "DFT", nil, nil, true},
	{"", "STFT", nil, nil, true},
	{"", "Resize", nil, nil, true},
	{"", "Upsample", nil, nil, true},
	{"", "If", nil, nil, true},
	{"", "Loop", nil, nil, true},
	{"", "Scan", nil, nil, true},
	{"", "ConvInteger", nil, nil, true},
	{"", "QLinearConv", nil, nil, true},
	{"", "QLinearMatMul", nil, nil, true},
	{"ai.onnx.ml", "Normalizer", nil, first, false},
	{"ai.onnx.ml", "Scaler", nil, first, false},
	{"com.microsoft", "FusedConv", nil, []Pair{{3, 0}}, true},
	{"com.microsoft.nchwc", "Conv", nil, []Pair{{3, 0}}, false},
}

// neverInPlace reports a node whose kernel takes over no input although that of float32
// does: Softmax and LogSoftmax of float64 are registered without it.
func neverInPlace(n *onnx.Node) bool {
	return n.Is("Softmax", "LogSoftmax") && n.In(0) != nil && n.In(0).Type.DType == onnx.Float64
}
