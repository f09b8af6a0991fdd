package infer

// The private operators that ONNX Runtime's training package writes. Their
// forms are those of its operator schemas; a gradient has the type of what it
// is the gradient of.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

var gradients = []row{
	{microsoft, "AdamWOptimizer", 1, 6, flagAnd(2, 4, 5), nil, "bool [1], updated sequences"},
	{microsoft, "AveragePoolGrad", 1, 1, gradOfUnseen, nil, "as declared"},
	{microsoft, "BatchNormInternal", 1, 5, batchNorm, nil, "like X, running and saved statistics"},
	{microsoft, "BatchNormalizationGrad", 1, 3, likes(1, 2, 2), nil, "like X, scale, scale"},
	{microsoft, "BiasFastGeluGrad_dX", 1, 3, likes(0), nil, "like dY"},
	{microsoft, "BiasGeluGrad_dX", 1, 3, likes(0), nil, "like dY"},
	{microsoft, "BitmaskDropoutGrad", 1, 1, likes(0), nil, "like dY"},
	{microsoft, "BroadcastGradientArgs", 1, 2, gradientArgs, evalGradientArgs, "the axes that each shape was broadcast along"},
	{microsoft, "ConcatTraining", 1, all, concatTraining, evalConcatFirst, "the axis adds up; the lengths"},
	{microsoft, "ConvGrad", 1, 3, convGrad, nil, "like X, W, and [m]"},
	{microsoft, "DivGrad", 1, 3, likes(1, 2), nil, "like A, B"},
	{microsoft, "DropoutGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "FastGeluGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "GRUGrad", 1, 3, likes(0, 1, 2, -1, 4), nil, "like X, W, R, B, H0"},
	{microsoft, "GRUTraining", 1, 3, recurrentTraining(3), nil, "GRU's outputs and the gates"},
	{microsoft, "GatherElementsGrad", 1, 3, fromShapeInput(1, 0), nil, "the shape in input 1"},
	{microsoft, "GatherGrad", 1, 3, fromShapeInput(0, 2), nil, "the shape in input 0"},
	{microsoft, "GatherNDGrad", 1, 3, fromShapeInput(0, 2), nil, "the shape in input 0"},
	{microsoft, "GeluGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "InPlaceAccumulator", 1, 2, likes(0), nil, "like the sum"},
	{microsoft, "InPlaceAccumulatorV2", 1, 2, flagAnd(0), nil, "bool [1], like the sum"},
	{microsoft, "LSTMGrad", 1, 3, likes(0, 1, 2, -1, 4, 5, -1), nil, "like X, W, R, B, H0, C0, P"},
	{microsoft, "LSTMTraining", 1, 3, recurrentTraining(4), nil, "LSTM's outputs, all cell states, the gates"},
	{microsoft, "LayerNormalizationGrad", 1, 5, likes(1, 2, 2), nil, "like X, scale, scale"},
	{microsoft, "LeakyReluGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "LogSoftmaxGrad", 1, 2, likes(1), nil, "like Y"},
	{microsoft, "LogSoftmaxGrad_13", 1, 2, likes(1), nil, "like Y"},
	{microsoft, "MaxPoolGrad", 1, 2, gradOfUnseen, nil, "as declared"},
	{microsoft, "QuickGeluGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "ReluGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "SGDOptimizerV2", 1, 3, flagAnd(1), nil, "bool [1], updated sequence"},
	{microsoft, "Scale", 1, 2, likes(0), nil, "like X"},
	{microsoft, "SigmoidGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "SimplifiedLayerNormalizationGrad", 1, 4, likes(1, 2), nil, "like X, scale"},
	{microsoft, "SliceGrad", 1, 4, fromShapeInput(1, 0), nil, "the shape in input 1"},
	{microsoft, "SoftmaxCrossEntropyLossGrad", 1, 3, likes(1), nil, "like the log probabilities"},
	{microsoft, "SoftmaxCrossEntropyLossInternal", 1, 2, crossEntropy, nil, "scalar, or like the labels; log probabilities"},
	{microsoft, "SoftmaxCrossEntropyLossInternalGrad", 1, 3, likes(1), nil, "like the log probabilities"},
	{microsoft, "SoftmaxGrad", 1, 2, likes(1), nil, "like Y"},
	{microsoft, "SoftmaxGrad_13", 1, 2, likes(1), nil, "like Y"},
	{microsoft, "SplitTraining", 1, 1, split, evalSplit, "parts of the axis"},
	{microsoft, "TanhGrad", 1, 2, likes(0), nil, "like dY"},
	{microsoft, "ZeroGradient", 1, 1, likes(0), nil, "like the gradient"},
}

// likes gives output i the type of input list[i]; -1 leaves it as declared.
func likes(list ...int) func(*ctx) error {
	return func(c *ctx) error {
		if len(c.types) > len(list) {
			return fmt.Errorf("%d outputs, at most %d are known", len(c.types), len(list))
		}
		for o := range c.types {
			if list[o] >= 0 {
				c.like(o, list[o])
			}
		}
		return nil
	}
}

// gradOfUnseen: a pool's gradient does not read what the pool read; only the
// element type follows.
func gradOfUnseen(c *ctx) error {
	c.setDType(0, c.dtype(0))
	return nil
}

// fromShapeInput takes the shape from the elements of input i and the element
// type from input d.
func fromShapeInput(i, d int) func(*ctx) error {
	return func(c *ctx) error {
		return c.setFromInput(c.dtype(d), i)
	}
}

// flagAnd: a bool [1], then outputs like the given inputs: a sum, updated sequences.
func flagAnd(list ...int) func(*ctx) error {
	return func(c *ctx) error {
		c.set(0, onnx.Bool, onnx.StaticShape(1))
		for i, from := range list {
			c.like(i+1, from)
		}
		return nil
	}
}

// convGrad: dY, X, W → like X, like W, [m].
func convGrad(c *ctx) error {
	c.like(0, 1)
	c.like(1, 2)
	if w, ok := c.shape(2); ok && len(w) > 0 {
		c.set(2, c.dtype(2), w[:1])
	} else {
		c.set(2, c.dtype(2), unknowns(1))
	}
	return nil
}

// recurrentTraining: the outputs of the plain operator, then for an LSTM all
// cell states, then the gates' values, gates times hidden wide.
func recurrentTraining(gates int64) func(*ctx) error {
	return func(c *ctx) error {
		if err := recurrent(c, gates); err != nil {
			return err
		}
		if len(c.types) == 0 || len(c.types[0].Shape) != 4 {
			return nil
		}
		y := c.types[0]
		wide := append(onnx.Shape{}, y.Shape...)
		wide[3] = wide[3].Mul(onnx.Static(gates))
		if gates == 4 {
			c.set(3, y.DType, y.Shape)
			c.set(4, y.DType, wide)
		} else {
			c.set(2, y.DType, wide)
		}
		return nil
	}
}

// concatTraining: Concat, and the inputs' lengths as int64 [inputs].
func concatTraining(c *ctx) error {
	c.set(1, onnx.Int64, onnx.StaticShape(int64(len(c.n.Inputs))))
	return concat(c)
}

func evalConcatFirst(c *ctx, o int) []elem {
	if o == 0 {
		return evalConcat(c, 0)
	}
	var out []elem
	for i := range c.n.Inputs {
		s, ok := c.shape(i)
		axis, err := normAxis(c.n.Int("axis", 0), len(s))
		if !ok || err != nil {
			return nil
		}
		out = append(out, dimElem(s[axis]))
	}
	return out
}

// gradientArgs: for two shapes that broadcast, the axes of the result along
// which each was repeated, last axis first.
func gradientArgs(c *ctx) error {
	axes, ok := c.repeatedAxes()
	for o := range c.types {
		c.set(o, onnx.Int64, unknowns(1))
		if ok && o < 2 {
			c.set(o, onnx.Int64, onnx.StaticShape(int64(len(axes[o]))))
		}
	}
	return nil
}

func (c *ctx) repeatedAxes() (axes [2][]int64, ok bool) {
	a, ok1 := c.elems(0)
	b, ok2 := c.elems(1)
	if !ok1 || !ok2 {
		return axes, false
	}
	rank := max(len(a), len(b))
	for k := rank - 1; k >= 0; k-- {
		i, j := k-(rank-len(a)), k-(rank-len(b))
		switch {
		case i < 0:
			axes[0] = append(axes[0], int64(k))
		case j < 0:
			axes[1] = append(axes[1], int64(k))
		case a[i] == b[j] && a[i].Known():
		case a[i].Is(1) && b[j].Known():
			axes[0] = append(axes[0], int64(k))
		case b[j].Is(1) && a[i].Known():
			axes[1] = append(axes[1], int64(k))
		default:
			return axes, false
		}
	}
	return axes, true
}

func evalGradientArgs(c *ctx, o int) []elem {
	axes, ok := c.repeatedAxes()
	if !ok || o > 1 {
		return nil
	}
	out := []elem{}
	for _, a := range axes[o] {
		out = append(out, intElem(a))
	}
	return out
}
