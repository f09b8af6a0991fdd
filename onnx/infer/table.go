package infer

import (
	"cmp"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// A row is how one operator's types follow from its inputs.
type row struct {
	domain, op string
	// since is the first opset whose form of the operator the rules read; the
	// forms after it differ in nothing that they do not handle.
	since int64
	// inputs is how many inputs must be given, the first ones; all for every one
	// that the node lists.
	inputs int
	// infer types the outputs; what it leaves alone stays unknown.
	infer func(*ctx) error
	// eval gives the elements of output o, nil where it cannot. It runs after
	// the outputs are typed, and only where they are small.
	eval func(c *ctx, o int) []elem
	doc  string
}

// all stands as row.inputs for every input, and at least one.
const all = -1

type key struct{ domain, op string }

var rows = index(standard, ortOperators, mlOperators, gradients)

// index makes the lookup of tables; a row given twice is a bug.
func index(tables ...[]row) map[key]*row {
	m := map[key]*row{}
	for _, t := range tables {
		for i := range t {
			k := key{t[i].domain, t[i].op}
			if m[k] != nil {
				panic("infer: two rows for " + k.domain + "." + k.op)
			}
			m[k] = &t[i]
		}
	}
	return m
}

// standard is the ONNX domain, and the operators that ONNX Runtime's optimizer
// writes into it.
var standard = []row{
	// Elementwise, one input.
	{"", "Abs", 6, 1, same, unaryEval(absDim, math.Abs), "like X"},
	{"", "Acos", 7, 1, sameFloat, nil, "like X"},
	{"", "Acosh", 9, 1, sameFloat, nil, "like X"},
	{"", "Asin", 7, 1, sameFloat, nil, "like X"},
	{"", "Asinh", 9, 1, sameFloat, nil, "like X"},
	{"", "Atan", 7, 1, sameFloat, nil, "like X"},
	{"", "Atanh", 9, 1, sameFloat, nil, "like X"},
	{"", "BitwiseNot", 18, 1, same, nil, "like X"},
	{"", "Ceil", 6, 1, same, unaryEval(sameDim, math.Ceil), "like X"},
	{"", "Celu", 12, 1, sameFloat, nil, "like X"},
	{"", "Clip", 6, 1, clip, mapped(evalClip), "like X"},
	{"", "Cos", 7, 1, sameFloat, nil, "like X"},
	{"", "Cosh", 9, 1, sameFloat, nil, "like X"},
	{"", "Elu", 6, 1, sameFloat, nil, "like X"},
	{"", "Erf", 9, 1, same, nil, "like X"},
	{"", "Exp", 6, 1, sameFloat, nil, "like X"},
	{"", "Floor", 6, 1, same, unaryEval(sameDim, math.Floor), "like X"},
	{"", "Gelu", 20, 1, sameFloat, nil, "like X"},
	{"", "HardSigmoid", 6, 1, sameFloat, nil, "like X"},
	{"", "HardSwish", 14, 1, sameFloat, nil, "like X"},
	{"", "Identity", 1, 1, same, evalSame, "like X, sequences too"},
	{"", "MemcpyFromHost", 1, 1, same, evalSame, "like X; ONNX Runtime's copy to a device"},
	{"", "MemcpyToHost", 1, 1, same, evalSame, "like X; ONNX Runtime's copy from a device"},
	{"", "IsInf", 10, 1, sameAs(onnx.Bool), nil, "bool"},
	{"", "IsNaN", 9, 1, sameAs(onnx.Bool), nil, "bool"},
	{"", "LeakyRelu", 6, 1, sameFloat, nil, "like X"},
	{"", "Log", 6, 1, sameFloat, nil, "like X"},
	{"", "Mish", 18, 1, sameFloat, nil, "like X"},
	{"", "Neg", 6, 1, same, unaryEval(negDim, func(x float64) float64 { return -x }), "like X"},
	{"", "Not", 1, 1, sameAs(onnx.Bool), mapped(evalNot), "bool"},
	{"", "Reciprocal", 6, 1, same, unaryEval(nil, func(x float64) float64 { return 1 / x }), "like X"},
	{"", "Relu", 6, 1, same, nil, "like X"},
	{"", "Round", 11, 1, same, unaryEval(nil, math.RoundToEven), "like X"},
	{"", "Selu", 6, 1, sameFloat, nil, "like X"},
	{"", "Shrink", 9, 1, same, nil, "like X"},
	{"", "Sigmoid", 6, 1, sameFloat, nil, "like X"},
	{"", "Sign", 9, 1, same, nil, "like X"},
	{"", "Sin", 7, 1, sameFloat, nil, "like X"},
	{"", "Sinh", 9, 1, sameFloat, nil, "like X"},
	{"", "Softplus", 1, 1, sameFloat, nil, "like X"},
	{"", "Softsign", 1, 1, sameFloat, nil, "like X"},
	{"", "Sqrt", 6, 1, same, unaryEval(nil, math.Sqrt), "like X"},
	{"", "Swish", 24, 1, sameFloat, nil, "like X"},
	{"", "Tan", 7, 1, sameFloat, nil, "like X"},
	{"", "Tanh", 6, 1, sameFloat, nil, "like X"},
	{"", "ThresholdedRelu", 10, 1, sameFloat, nil, "like X"},

	// Elementwise, several inputs.
	{"", "Add", 7, 2, elementwise(0), binaryEval(addRule), "broadcast"},
	{"", "And", 7, 2, logical, logicEval(and3), "broadcast, bool"},
	{"", "BitShift", 11, 2, firstType, nil, "broadcast"},
	{"", "BitwiseAnd", 18, 2, elementwise(0), nil, "broadcast"},
	{"", "BitwiseOr", 18, 2, elementwise(0), nil, "broadcast"},
	{"", "BitwiseXor", 18, 2, elementwise(0), nil, "broadcast"},
	{"", "Div", 7, 2, elementwise(0), binaryEval(divRule), "broadcast"},
	{"", "Equal", 7, 2, elementwise(onnx.Bool), compareEval(false, true, false), "broadcast, bool"},
	{"", "Greater", 7, 2, elementwise(onnx.Bool), compareEval(false, false, true), "broadcast, bool"},
	{"", "GreaterOrEqual", 12, 2, elementwise(onnx.Bool), compareEval(false, true, true), "broadcast, bool"},
	{"", "Less", 7, 2, elementwise(onnx.Bool), compareEval(true, false, false), "broadcast, bool"},
	{"", "LessOrEqual", 12, 2, elementwise(onnx.Bool), compareEval(true, true, false), "broadcast, bool"},
	{"", "Max", 8, all, variadic, foldEval(maxRule), "broadcast of all"},
	{"", "Mean", 8, all, variadic, nil, "broadcast of all"},
	{"", "Min", 8, all, variadic, foldEval(minRule), "broadcast of all"},
	{"", "Mod", 10, 2, elementwise(0), mapped(evalMod), "broadcast"},
	{"", "Mul", 7, 2, elementwise(0), binaryEval(mulRule), "broadcast"},
	{"", "Or", 7, 2, logical, logicEval(or3), "broadcast, bool"},
	{"", "PRelu", 7, 2, same, nil, "like X"},
	{"", "Pow", 7, 2, firstType, mapped(evalPow), "broadcast, type of the base"},
	{"", "Sub", 7, 2, elementwise(0), binaryEval(subRule), "broadcast"},
	{"", "Sum", 8, all, variadic, foldEval(addRule), "broadcast of all"},
	{"", "Where", 9, 3, where, mapped(evalWhere), "broadcast of all three"},
	{"", "Xor", 7, 2, logical, logicEval(xor3), "broadcast, bool"},

	// Types and random numbers.
	{"", "Bernoulli", 15, 1, randomLike, nil, "like X, type dtype"},
	{"", "BitCast", 26, 1, bitCast, nil, "like X, type to"},
	{"", "Cast", 6, 1, cast, evalCast, "like X, type to"},
	{"", "CastLike", 15, 2, castLike, evalCast, "like X, type of the second"},
	{"", "Dropout", 7, 1, dropout, nil, "like X, and a bool mask"},
	{"", "EyeLike", 9, 1, eyeLike, nil, "like X, type dtype"},
	{"", "RandomNormal", 1, 0, random, nil, "attribute shape"},
	{"", "RandomNormalLike", 1, 1, randomLike, nil, "like X, type dtype"},
	{"", "RandomUniform", 1, 0, random, nil, "attribute shape"},
	{"", "RandomUniformLike", 1, 1, randomLike, nil, "like X, type dtype"},

	// Reductions.
	{"", "ArgMax", 1, 1, argReduce, nil, "int64, axis 1 or gone"},
	{"", "ArgMin", 1, 1, argReduce, nil, "int64, axis 1 or gone"},
	{"", "CumProd", 26, 2, same, nil, "like X"},
	{"", "CumSum", 11, 2, same, evalCumSum, "like X"},
	{"", "ReduceL1", 1, 1, ranked(reduce), nil, "axes 1 or gone"},
	{"", "ReduceL2", 1, 1, ranked(reduce), nil, "axes 1 or gone"},
	{"", "ReduceLogSum", 1, 1, ranked(reduce), nil, "axes 1 or gone"},
	{"", "ReduceLogSumExp", 1, 1, ranked(reduce), nil, "axes 1 or gone"},
	{"", "ReduceMax", 1, 1, ranked(reduce), reduceEval(maxRule, nil), "axes 1 or gone"},
	{"", "ReduceMean", 1, 1, ranked(reduce), nil, "axes 1 or gone"},
	{"", "ReduceMin", 1, 1, ranked(reduce), reduceEval(minRule, nil), "axes 1 or gone"},
	{"", "ReduceProd", 1, 1, ranked(reduce), reduceEval(mulRule, &emptyProduct), "axes 1 or gone"},
	{"", "ReduceSum", 1, 1, ranked(reduce), reduceEval(addRule, &emptySum), "axes 1 or gone"},
	{"", "ReduceSumSquare", 1, 1, ranked(reduce), nil, "axes 1 or gone"},
	{"", "TopK", 10, 2, topK, nil, "axis becomes k"},

	// Products.
	{"", "Einsum", 12, all, einsum, nil, "by the equation"},
	{"", "Gemm", 7, 2, gemm, nil, "[m,n]"},
	{"", "MatMul", 1, 2, matMul, nil, "[...,m,n]"},
	{"", "MatMulInteger", 10, 2, matMulInteger, nil, "[...,m,n] int32"},
	{"", "QLinearMatMul", 10, 8, qlinearMatMul, nil, "[...,m,n]"},

	// Convolutions, pools, images.
	{"", "AveragePool", 1, 1, pool, nil, "[n,c,...]"},
	{"", "Conv", 1, 2, conv, nil, "[n,m,...]"},
	{"", "ConvInteger", 10, 2, convInteger, nil, "[n,m,...] int32"},
	{"", "ConvTranspose", 1, 2, convTranspose, nil, "[n,m,...]"},
	{"", "DepthToSpace", 1, 1, depthToSpace, nil, "channels to space"},
	{"", "GlobalAveragePool", 1, 1, ranked(globalPool), nil, "[n,c,1,...]"},
	{"", "GlobalLpPool", 2, 1, ranked(globalPool), nil, "[n,c,1,...]"},
	{"", "GlobalMaxPool", 1, 1, ranked(globalPool), nil, "[n,c,1,...]"},
	{"", "LpPool", 2, 1, pool, nil, "[n,c,...]"},
	{"", "MaxPool", 1, 1, pool, nil, "[n,c,...], indices"},
	{"", "MaxUnpool", 9, 2, maxUnpool, nil, "[n,c,...]"},
	{"", "QLinearConv", 10, 8, qlinearConv, nil, "[n,m,...]"},
	{"", "SpaceToDepth", 1, 1, spaceToDepth, nil, "space to channels"},

	{"", "AffineGrid", 20, 2, affineGrid, nil, "[n,...,dims]"},
	{"", "CenterCropPad", 18, 2, ranked(centerCropPad), nil, "the extents in input 1"},
	{"", "Col2Im", 18, 3, col2Im, nil, "[n,c,image]"},
	{"", "DeformConv", 19, 3, deformConv, nil, "[n,m,...]"},
	{"", "GridSample", 16, 2, gridSample, nil, "[n,c,grid]"},
	{"", "MaxRoiPool", 1, 2, maxRoiPool, nil, "[rois,c,h,w]"},
	{"", "NonMaxSuppression", 10, 2, nonMaxSuppression, nil, "int64 [?,3]"},
	{"", "Resize", 10, 1, ranked(resize), nil, "sizes, or extents times scales"},
	{"", "RoiAlign", 10, 3, roiAlign, nil, "[rois,c,h,w]"},
	{"", "Upsample", 9, 2, ranked(resize), nil, "extents times scales"},

	// Signals, quantization, data-dependent extents.
	{"", "BlackmanWindow", 17, 1, windowFunction, nil, "[size]"},
	{"", "Compress", 9, 2, compress, nil, "? along the axis"},
	{"", "DFT", 17, 1, ranked(dft), nil, "like X, last dimension 2"},
	{"", "DequantizeLinear", 10, 2, dequantize, nil, "like X, type of the scale"},
	{"", "Det", 11, 1, ranked(det), nil, "last two dimensions gone"},
	{"", "DynamicQuantizeLinear", 11, 1, dynamicQuantize, nil, "uint8 like X, scale, zero point"},
	{"", "HammingWindow", 17, 1, windowFunction, nil, "[size]"},
	{"", "HannWindow", 17, 1, windowFunction, nil, "[size]"},
	{"", "MelWeightMatrix", 17, 5, melWeights, nil, "[bins,mel bins]"},
	{"", "Multinomial", 7, 1, multinomial, nil, "[batch,samples]"},
	{"", "QuantizeLinear", 10, 2, quantize, nil, "like X, type of the zero point"},
	{"", "STFT", 17, 2, stft, nil, "[batch,frames,bins,2]"},
	{"", "Unique", 11, 1, unique, nil, "[?], indices"},

	// Norms, softmax, losses.
	{"", "BatchNormalization", 9, 5, batchNorm, nil, "like X, running statistics"},
	{"", "GroupNormalization", 18, 3, scaledNorm, nil, "like X"},
	{"", "Hardmax", 1, 1, same, nil, "like X"},
	{"", "InstanceNormalization", 6, 3, scaledNorm, nil, "like X"},
	{"", "LRN", 1, 1, same, nil, "like X"},
	{"", "LayerNormalization", 1, 2, layerNorm, nil, "like X, statistics"},
	{"", "LogSoftmax", 1, 1, axisSame(-1), nil, "like X"},
	{"", "LpNormalization", 1, 1, axisSame(-1), nil, "like X"},
	{"", "MeanVarianceNormalization", 9, 1, same, nil, "like X"},
	{"", "NegativeLogLikelihoodLoss", 12, 2, nll, nil, "scalar, or like the labels"},
	{"", "RMSNormalization", 23, 2, same, nil, "like X"},
	{"", "SimplifiedLayerNormalization", 1, 2, layerNorm, nil, "like X, statistics; written by ONNX Runtime"},
	{"", "Softmax", 1, 1, axisSame(-1), nil, "like X"},
	{"", "SoftmaxCrossEntropyLoss", 12, 2, crossEntropy, nil, "scalar, or like the labels; log probabilities"},

	// Sequence models.
	{"", "Attention", 23, 3, attention, nil, "Y, present key and value, scores"},
	{"", "GRU", 7, 3, gated(3), nil, "[seq,dirs,batch,hidden], last state"},
	{"", "LSTM", 7, 3, gated(4), nil, "[seq,dirs,batch,hidden], last states"},
	{"", "RNN", 7, 3, gated(1), nil, "[seq,dirs,batch,hidden], last state"},
	{"", "RotaryEmbedding", 23, 3, rotary, nil, "like X"},

	// Shapes.
	{"", "Constant", 1, 0, constant, evalConstant, "the attribute"},
	{"", "ConstantOfShape", 9, 1, constantOfShape, evalConstantOfShape, "the shape in X"},
	{"", "Expand", 8, 2, expand, evalExpand, "broadcast with the shape in input 1"},
	{"", "Flatten", 1, 1, flatten, evalSame, "[before axis, from axis]"},
	{"", "Reshape", 5, 2, reshape, evalSame, "the shape in input 1"},
	{"", "Shape", 1, 1, shape, evalShape, "int64 [rank]"},
	{"", "Size", 1, 1, size, evalSize, "int64 scalar"},
	{"", "Squeeze", 1, 1, ranked(squeeze), evalSame, "axes of 1 go"},
	{"", "Transpose", 1, 1, transpose, evalTranspose, "permuted"},
	{"", "Unsqueeze", 1, 1, unsqueeze, evalSame, "axes of 1 come"},

	// Parts and positions.
	{"", "Concat", 4, all, concat, evalConcat, "the axis adds up"},
	{"", "Gather", 1, 2, gather, evalGather, "the axis becomes the indices' shape"},
	{"", "GatherElements", 11, 2, gatherElements, nil, "like the indices"},
	{"", "GatherND", 11, 2, gatherND, nil, "indices[:-1] + the rest of the data"},
	{"", "NonZero", 9, 1, nonZero, evalNonZero, "int64 [rank,?]"},
	{"", "OneHot", 9, 3, oneHot, evalOneHot, "depth at the axis"},
	{"", "Pad", 2, 1, ranked(pad), nil, "extents plus pads"},
	{"", "Range", 11, 3, rangeOf, evalRange, "[(limit-start)/delta]"},
	{"", "ReverseSequence", 10, 2, same, nil, "like X"},
	{"", "Scatter", 9, 3, scatter, evalScatterElements, "like the data"},
	{"", "ScatterElements", 11, 3, scatter, evalScatterElements, "like the data"},
	{"", "ScatterND", 11, 3, scatter, evalScatterND, "like the data"},
	{"", "Slice", 10, 3, ranked(slice), evalSlice, "starts, ends, axes, steps"},
	{"", "Split", 2, 1, split, evalSplit, "parts of the axis"},
	{"", "TensorScatter", 24, 2, same, nil, "like the cache"},
	{"", "Tile", 6, 2, ranked(tile), evalTile, "extents times repeats"},
	{"", "Trilu", 14, 1, same, nil, "like X"},

	// Control flow.
	{"", "If", 1, 1, ifElse, nil, "what both branches declare"},
	{"", "Loop", 1, 0, loop, nil, "what the body declares"},
	{"", "Scan", 9, all, scan, nil, "what the body declares"},
}

// An Operator names one; Domain is "" for the standard one.
type Operator struct{ Domain, Op string }

func (o Operator) String() string {
	if o.Domain == "" {
		return o.Op
	}
	return o.Domain + "." + o.Op
}

// Known reports an operator that has a row.
func (o Operator) Known() bool { return rows[key{o.Domain, o.Op}] != nil }

// Provided reports a name that ONNX Runtime looks for among its own operators before
// it does among a model's functions, and finds: any in the standard domains, where
// it takes no function at all.
func Provided(domain, op string) bool {
	return domain == "" || domain == ml || Operator{domain, op}.Known()
}

// Operators lists those with a row, by name: every one that a graph may hold to be
// understood.
func Operators() []Operator {
	list := make([]Operator, 0, len(rows))
	for k := range rows {
		list = append(list, Operator{k.domain, k.op})
	}
	slices.SortFunc(list, func(a, b Operator) int { return cmp.Compare(a.String(), b.String()) })
	return list
}
