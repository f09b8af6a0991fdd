package runtime

// Optimizers of ONNX Runtime that a graph gives nothing to do.
//
//	operators of the graph ─▶ rows of the table that lack one ─▶ disabled
//
// Each optimizer sorts and walks the whole graph before it looks for its pattern, and
// some fifty do: in a step of 14,000 nodes that is about half of what a session costs that
// is made to see what is fused. So those are left out whose pattern has an operator that the
// graph has none of. The patterns were read in onnxruntime/core/optimizer near release
// 1.31.1, against which the table is tested; no other release is told of it. What another
// optimizer makes of an operator counts as that operator (Gelu is made of Erf,
// LayerNormalization of ReduceMean), and where that is not certain there is no row.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ortversion"
)

// An optimizer of ONNX Runtime changes a graph only if it has one operator of each group.
type optimizer struct {
	name   string
	groups [][]string
}

var (
	quantized = []string{"QuantizeLinear", "DequantizeLinear"}
	norms     = []string{"LayerNormalization", "RMSNormalization", "ReduceMean"}
	convs     = []string{"Conv"}
)

// optimizers are those that are known to do nothing without certain operators.
var optimizers = []optimizer{
	{"EnsureUniqueDQForNodeUnit", [][]string{quantized}},
	{"DoubleQDQPairsRemover", [][]string{quantized}},
	{"QDQPropagationTransformer", [][]string{quantized}},
	{"QDQS8ToU8Transformer", [][]string{quantized}},
	{"QDQSelectorActionTransformer", [][]string{quantized}},
	{"QDQFinalCleanupTransformer", [][]string{quantized}},
	{"WeightBiasQuantization", [][]string{quantized}},
	{"WhereDummyDq", [][]string{quantized}},
	{"MatMulNBitsFusion", [][]string{quantized}},
	{"DynamicQuantizeMatMulFusion", [][]string{append([]string{"MatMulInteger"}, quantized...)}},
	{"MatMulIntegerToFloatFusion", [][]string{{"MatMulInteger"}}},
	{"ConvActivationFusion", [][]string{convs}},
	{"ConvAddActivationFusion", [][]string{convs}},
	{"NhwcTransformer", [][]string{append([]string{"QLinearConv", "MaxPool", "AveragePool", "GlobalAveragePool"}, convs...)}},
	{"GroupQueryAttentionFusion", [][]string{{"RotaryEmbedding"}}},
	{"AttentionFusion", [][]string{{"MatMul"}, {"Transpose"}, {"Softmax"}}},
	{"EmbedLayerNormFusion", [][]string{norms, {"Softmax"}, {"Gather", "Slice", "Transpose"}}},
	{"SkipLayerNormFusion", [][]string{norms, {"Add"}}},
	{"BiasSkipLayerNormFusion", [][]string{norms, {"Add"}, {"MatMul"}}},
	{"LayerNormFusionL1", [][]string{{"ReduceMean"}, {"Sub"}, {"Sqrt"}}},
	{"LayerNormFusionL2", [][]string{{"ReduceMean"}, {"Sub"}, {"Sqrt"}}},
	{"SimplifiedLayerNormFusion", [][]string{{"ReduceMean"}, {"Pow"}, {"Sqrt"}}},
	{"GeluFusionL1", [][]string{{"Erf"}}},
	{"GeluFusionL2", [][]string{{"Erf"}}},
	{"FastGeluFusion", [][]string{{"Tanh"}}},
	{"BiasGeluFusion", [][]string{{"Gelu", "Erf", "Tanh"}, {"Add"}}},
	{"QuickGeluFusion", [][]string{{"Sigmoid"}}},
	{"BiasSoftmaxFusion", [][]string{{"Softmax"}, {"Add"}}},
	{"BiasDropoutFusion", [][]string{{"Dropout"}, {"Add"}}},
	{"GatherToSliceFusion", [][]string{{"Range"}, {"Gather"}}},
	{"GatherSliceToSplitFusion", [][]string{{"Gather", "Slice"}}},
	{"SliceConcatToSpaceToDepthFusion", [][]string{{"Slice"}, {"Concat"}}},
	{"MatMulAddFusion", [][]string{{"MatMul"}, {"Add"}}},
	{"MatMulScaleFusion", [][]string{{"MatMul"}, {"Mul", "Div"}}},
	{"MatmulTransposeFusion", [][]string{{"MatMul"}, {"Transpose"}}},
	{"MatMulActivationFusion", [][]string{{"MatMul"}, {"Softmax"}}},
}

// functions are the operators that the ONNX standard defines by others: ONNX Runtime puts
// these in their place where the CPU has no kernel. True: it has one for float32.
var functions = map[string]bool{
	"AffineGrid": false, "Attention": false, "Bernoulli": false, "BlackmanWindow": false, "CastLike": false, "CausalConvWithState": false,
	"Celu": false, "CenterCropPad": false, "DynamicQuantizeLinear": false, "GroupNormalization": false, "HammingWindow": false,
	"HannWindow": false, "HardSwish": false, "LinearAttention": false, "MeanVarianceNormalization": false, "Mish": false,
	"NegativeLogLikelihoodLoss": false, "RMSNormalization": false, "RotaryEmbedding": false, "Selu": false, "SequenceMap": false,
	"Shrink": false, "SoftmaxCrossEntropyLoss": false, "SpaceToDepth": false, "SwiGLU": false, "Swish": false, "ThresholdedRelu": false,

	"Clip": true, "DepthToSpace": true, "Elu": true, "Gelu": true, "GreaterOrEqual": true, "HardSigmoid": true,
	"LayerNormalization": true, "LeakyRelu": true, "LessOrEqual": true, "LogSoftmax": true, "PRelu": true, "Range": true,
	"ReduceL1": true, "ReduceL2": true, "ReduceLogSum": true, "ReduceLogSumExp": true, "ReduceSumSquare": true, "Relu": true,
	"Softmax": true, "Softplus": true, "Softsign": true,
}

// idle names the optimizers that a graph gives nothing to do on the CPU. Of half types,
// which casts are put around, of subgraphs, other domains and operators that may be
// expanded, nothing is known.
func idle(g *onnx.Graph) []string {
	has := map[string]bool{}
	for _, n := range g.Nodes {
		kernel, function := functions[n.OpType()]
		if n.Domain() != "" || function && !kernel || len(n.Subgraphs()) > 0 {
			return nil
		}
		for _, v := range slices.Concat(n.Inputs, n.Outputs) {
			switch {
			case v == nil:
			case !v.Type.Known(), v.Type.DType == onnx.Float16, v.Type.DType == onnx.BFloat16, v.Type.DType == onnx.Float64 && function:
				return nil
			}
		}
		has[n.OpType()] = true
	}
	var list []string
	for _, o := range optimizers {
		if slices.ContainsFunc(o.groups, func(group []string) bool {
			return !slices.ContainsFunc(group, func(op string) bool { return has[op] })
		}) {
			list = append(list, o.name)
		}
	}
	return list
}

// withoutIdle leaves the optimizers out that a graph gives nothing to do.
func (e *Engine) withoutIdle(o ort.SessionOptions, g *onnx.Graph) ort.SessionOptions {
	if o.Provider == ort.CPU && o.Level > 0 && e.Env.Version() == ortversion.Current {
		o.DisabledOptimizers = slices.Concat(o.DisabledOptimizers, idle(g))
	}
	return o
}
