package remat

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/tile"
)

// An operatorTable is one that has a row an operator, or says why it has none.
type operatorTable struct {
	// name says what the table knows and where a row belongs.
	name string
	// concerns reports an operator that the table is about; nil: all.
	concerns func(o infer.Operator) bool
	// has reports a row.
	has func(o infer.Operator) bool
	// without lists the operators that have none, by the reason. A list may only
	// shrink: what has a row by now has to go.
	without map[string]string
}

// Private operators of training graphs that ONNX Runtime's training builds wrote,
// and of its fusions.
const (
	trainingOperators = `com.microsoft.AdamWOptimizer com.microsoft.AveragePoolGrad com.microsoft.BatchNormInternal
		com.microsoft.BatchNormalizationGrad com.microsoft.BiasFastGeluGrad_dX com.microsoft.BiasGeluGrad_dX
		com.microsoft.BitmaskBiasDropout com.microsoft.BitmaskDropout com.microsoft.BitmaskDropoutGrad
		com.microsoft.BroadcastGradientArgs com.microsoft.ConcatTraining com.microsoft.ConvGrad com.microsoft.DivGrad
		com.microsoft.DropoutGrad com.microsoft.FastGeluGrad com.microsoft.GRUGrad com.microsoft.GRUTraining
		com.microsoft.GatherElementsGrad com.microsoft.GatherGrad com.microsoft.GatherNDGrad com.microsoft.GeluGrad
		com.microsoft.InPlaceAccumulator com.microsoft.InPlaceAccumulatorV2 com.microsoft.LSTMGrad
		com.microsoft.LSTMTraining com.microsoft.LayerNormalizationGrad com.microsoft.LeakyReluGrad
		com.microsoft.LogSoftmaxGrad com.microsoft.LogSoftmaxGrad_13 com.microsoft.MaxPoolGrad com.microsoft.QuickGeluGrad
		com.microsoft.ReluGrad com.microsoft.SGDOptimizerV2 com.microsoft.Scale com.microsoft.SigmoidGrad
		com.microsoft.SimplifiedLayerNormalizationGrad com.microsoft.SliceGrad com.microsoft.SoftmaxCrossEntropyLossGrad
		com.microsoft.SoftmaxCrossEntropyLossInternal com.microsoft.SoftmaxCrossEntropyLossInternalGrad
		com.microsoft.SoftmaxGrad com.microsoft.SoftmaxGrad_13 com.microsoft.SplitTraining com.microsoft.TanhGrad
		com.microsoft.ZeroGradient`
	fusedOperators = `com.microsoft.BiasAdd com.microsoft.BiasDropout
		com.microsoft.FusedMatMulActivation com.microsoft.GemmFastGelu com.microsoft.TransposeMatMul com.microsoft.Trilu`
	attentionOperators = `com.microsoft.Attention com.microsoft.EmbedLayerNormalization com.microsoft.GroupQueryAttention
		com.microsoft.MultiHeadAttention com.microsoft.RotaryEmbedding`
	layoutOperators = `com.microsoft.nchwc.AveragePool com.microsoft.nchwc.Conv com.microsoft.nchwc.GlobalAveragePool
		com.microsoft.nchwc.GlobalMaxPool com.microsoft.nchwc.MaxPool com.microsoft.nchwc.ReorderInput
		com.microsoft.nchwc.ReorderOutput MemcpyFromHost MemcpyToHost`
	featureOperators = "ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.Imputer ai.onnx.ml.Normalizer ai.onnx.ml.Scaler"
	windowOperators  = "BlackmanWindow HammingWindow HannWindow MelWeightMatrix"
)

// unpacked are operators by codes of a few bits.
const unpacked = "com.microsoft.GatherBlockQuantized com.microsoft.MatMulNBits"

const lowered = "lower replaces it before anything else looks"

var operatorTables = []operatorTable{
	{
		name: "what it does to memory, cost and precision: onnx/traits/table.go, and memory.go for what the probe of runtime/predict finds",
		has: func(o infer.Operator) bool {
			_, ok := traits.OfOp(o.Domain, o.Op)
			return ok
		},
		without: map[string]string{
			lowered: trainingOperators + " com.microsoft.Inverse",
			"grad opens it before anything else looks":                                    unpacked,
			"ONNX Runtime's fusion for inference; a graph that has it is not planned yet": fusedOperators + " " + attentionOperators,
		},
	},
	{
		name: "its gradient: rewrite/grad/rules_*.go",
		has:  func(o infer.Operator) bool { return grad.Covers(o.Domain, o.Op) },
		without: map[string]string{
			"it reads no floats":                            "And BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConvInteger MatMulInteger Not Or QLinearConv QLinearMatMul Xor",
			"unpack opens it":                               unpacked,
			"it reads nothing":                              "Constant ConstantOfShape RandomNormal RandomUniform " + windowOperators,
			"normalize opens it where it can":               "If Loop Scan",
			"upgrade makes Resize or ScatterElements of it": "Scatter Upsample",
			"a cache of inference":                          "TensorScatter",
			"its output has a size that only the run knows": "Unique",
			"it rounds":                                     "DynamicQuantizeLinear",
			"private; a gradient or an optimizer itself, or with one that ONNX Runtime makes": trainingOperators,
			"ONNX Runtime's fusion for inference":                                             fusedOperators + " com.microsoft.BiasSoftmax com.microsoft.Inverse",
			"ONNX Runtime's layout and copies, which it makes after a file is loaded":         layoutOperators,
			"it prepares features, before any weight, or picks labels":                        featureOperators,
			"no rule yet": "MaxRoiPool",
		},
	},
	{
		name: "how a division of its output divides its inputs: rewrite/tile/rules.go",
		has: func(o infer.Operator) bool {
			region, _ := tile.Divides(o.Domain, o.Op)
			return region
		},
		without: map[string]string{
			lowered: unpacked + " " + trainingOperators + " " + fusedOperators + " " + attentionOperators + " com.microsoft.BiasSoftmax com.microsoft.Inverse",
			"never between a projection and its loss": layoutOperators + " " + windowOperators + " " + featureOperators + ` AffineGrid AveragePool BatchNormalization
				CenterCropPad Col2Im Conv ConvInteger ConvTranspose DFT DeformConv DepthToSpace DequantizeLinear Det
				DynamicQuantizeLinear GRU GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization
				InstanceNormalization LRN LSTM LpPool MatMulInteger MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization
				NonMaxSuppression QLinearConv QLinearMatMul QuantizeLinear RNN Resize ReverseSequence RoiAlign RotaryEmbedding
				STFT SpaceToDepth TensorScatter Upsample com.microsoft.FusedConv`,
			"parts of it would draw other numbers":                   "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
			"each element depends on those before, or all":           "CumProd CumSum Hardmax LayerNormalization LpNormalization RMSNormalization SimplifiedLayerNormalization TopK Trilu com.microsoft.SkipLayerNormalization com.microsoft.SkipSimplifiedLayerNormalization",
			"its output has a size or place that only the run knows": "Compress NonZero Scatter ScatterND Unique",
			"it runs a subgraph":                                     "If Loop Scan",
			"it opens into others first":                             "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
			"not divided yet": `Attention BitCast CastLike Concat Constant Einsum EyeLike Gather GatherND OneHot Range ReduceLogSum
				ReduceProd Shape Size Split Tile com.microsoft.FusedGemm`,
		},
	},
	{
		name: "how a division of the batch passes through it: rewrite/tile/batch.go",
		has:  func(o infer.Operator) bool { return tile.DividesBatch(o.Domain, o.Op) },
		without: map[string]string{
			lowered:                                unpacked + " " + trainingOperators + " " + fusedOperators + " " + attentionOperators + " com.microsoft.BiasSoftmax com.microsoft.Inverse",
			"it opens into others first":           "AffineGrid CastLike Compress CumProd DeformConv NegativeLogLikelihoodLoss Scatter SoftmaxCrossEntropyLoss Upsample",
			"it reads nothing of the batch":        windowOperators + " Constant EyeLike RandomNormal RandomUniform Range Shape Size",
			"parts of it would draw other numbers": "Multinomial",
			"its output has a size or places that only the run knows": "NonMaxSuppression NonZero Unique",
			"it runs a subgraph": "If Loop Scan",
			"its places or sizes count from the beginning of the batch":       "CenterCropPad MaxRoiPool MaxUnpool RoiAlign TensorScatter",
			"of frozen integers, or features before any weight":               featureOperators + " BitCast ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear",
			"ONNX Runtime's fusions and layouts, made after a file is loaded": layoutOperators + " com.microsoft.FusedConv com.microsoft.FusedGemm com.microsoft.SkipLayerNormalization com.microsoft.SkipSimplifiedLayerNormalization",
		},
	},
	{
		name: "how a slice of its output is computed: rewrite/tile/slicerules.go",
		concerns: func(o infer.Operator) bool {
			region, _ := tile.Divides(o.Domain, o.Op)
			return region
		},
		has: func(o infer.Operator) bool {
			_, slices := tile.Divides(o.Domain, o.Op)
			return slices
		},
		without: map[string]string{
			"between a loss and its projection alone, whose gradient does not pass it": "ArgMax ArgMin GatherElements Pad ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceSum ReduceSumSquare Slice",
			"a Reshape to the passes before":                                           "Flatten Squeeze Unsqueeze",
			// Measured: with them the optimal plans of mlp and heavy with SGD needed 65 and
			// 76 % more memory, as updates were then sliced through whole layers.
			"a function of layers, not of updates": `Acos Acosh And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
				BitwiseXor Ceil Celu Cos Cosh Elu Erf Floor Gelu GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu
				LessOrEqual Mean Mish Mod Or PRelu Relu Round Selu Shrink Sigmoid Sin Sinh Softplus Softsign Swish Tan Tanh
				ThresholdedRelu Xor com.microsoft.BiasGelu com.microsoft.FastGelu com.microsoft.Gelu com.microsoft.QuickGelu`,
			"not sliced yet": "ConstantOfShape Expand",
		},
	},
	{
		name: "the work of its product: productRules in planner/analysis/cost.go",
		concerns: func(o infer.Operator) bool {
			t, _ := traits.OfOp(o.Domain, o.Op)
			return t.Product()
		},
		has: func(o infer.Operator) bool { return analysis.CountsProduct(o.Op) },
		without: map[string]string{
			"estimated from its sizes": "DFT STFT DeformConv Det QLinearConv QLinearMatMul",
		},
	},
}

// TestOperatorsAreWhole: an operator whose types are inferred has a row in each
// table, or a reason there. A new row in onnx/infer fails this test with the list of
// the other rows that it needs.
func TestOperatorsAreWhole(t *testing.T) {
	known := map[string]bool{}
	for _, o := range infer.Operators() {
		known[o.String()] = true
	}
	for _, tr := range traits.All() {
		if o := (infer.Operator{Domain: tr.Domain, Op: tr.Op}); !known[o.String()] {
			t.Errorf("%s: no row for its types: onnx/infer", o)
		}
	}
	for _, table := range operatorTables {
		excused := map[string]bool{}
		for _, list := range table.without {
			for _, op := range strings.Fields(list) {
				if excused[op] || !known[op] {
					t.Errorf("%s: %s stands twice in the lists of %s, or has no row in onnx/infer", op, op, table.name)
				}
				excused[op] = true
			}
		}
		for _, o := range infer.Operators() {
			concerns := table.concerns == nil || table.concerns(o)
			switch has := concerns && table.has(o); {
			case has && excused[o.String()]:
				t.Errorf("%s has a row now, take it out of the list of those without: %s", o, table.name)
			case concerns && !has && !excused[o.String()]:
				t.Errorf("%s has no row for %s", o, table.name)
			case !concerns && excused[o.String()]:
				t.Errorf("%s needs no row for %s", o, table.name)
			}
		}
	}
}
