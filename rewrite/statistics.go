package rewrite

// BatchNormalization that computes its own statistics has no CUDA kernel from opset 14
// on: the provider's constructor refuses training_mode. It becomes
//
//	mean = ReduceSum(ReduceSum(x, [2, …]), [0]) / count    z = x − mean
//	var  = ReduceSum(ReduceSum(z·z, [2, …]), [0]) / count  y = z · scale/√(var + ε) + bias
//
// and the running statistics r·momentum + statistic·(1 − momentum), as
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html has them. A sum over
// trailing axes, then over leading ones, needs no workspace of cuDNN's, as one over both
// would (onnx/traits/scratchcuda.go).

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Statistics computes each normalization by the statistics of its input, of a typed graph,
// with operators that CUDA has.
func Statistics(g *onnx.Graph, types build.Typer) (Report, error) {
	return replaced("statistics", g, types, traits.ComputesStatistics, func(b *build.Builder, n *onnx.Node) (why string) {
		shape, ok := n.In(0).Type.Shape.Ints()
		if !ok || len(shape) < 2 {
			return "the extents of its input are not known"
		}
		if d := n.In(0).Type.DType; n.In(1).Type.DType != d || n.In(3).Type.DType != d {
			return "its input and its statistics have two types"
		}
		b.From(n, n.Label())
		normalized(b, n, shape)
		return ""
	})
}

// replaced has each node of a typed graph that asks for it replaced by others, which take
// over its outputs, or says why not.
func replaced(pass string, g *onnx.Graph, types build.Typer, asks func(*onnx.Node) bool, replace func(*build.Builder, *onnx.Node) (why string)) (Report, error) {
	r := Report{Pass: pass}
	b := build.New(g, types, pass)
	var gone []*onnx.Node
	for _, n := range g.Nodes {
		if !asks(n) {
			continue
		}
		r.Requested++
		if why := replace(b, n); why != "" {
			r.skip(n.Label(), "%s", why)
			continue
		}
		r.Applied++
		gone = append(gone, n)
	}
	if err := b.Err(); err != nil || len(gone) == 0 {
		return r, err
	}
	b.Flush()
	g.Remove(gone...)
	return r, g.SortTopologically()
}

// normalized computes what a node returns of an input of that shape, and has its readers
// read that.
func normalized(b *build.Builder, n *onnx.Node, shape []int64) {
	x, scale := n.In(0), n.In(1)
	do := func(op string, in ...*onnx.Value) *onnx.Value { return b.Op(op, build.In(in...)) }
	channels := slices.Repeat([]int64{1}, len(shape)-1) // [C, 1, …], which broadcasts over x
	channels[0] = shape[1]
	beside := func(v *onnx.Value) *onnx.Value { return do("Reshape", v, b.Ints(channels...)) }
	mean := channelMeans(b, x, shape)
	z := do("Sub", x, beside(mean))
	variance := channelMeans(b, do("Mul", z, z), shape)
	if variance == nil {
		return
	}
	deviation := do("Sqrt", do("Add", variance, b.Scalar(variance.Type.DType, n.Float("epsilon", 1e-5))))
	y := do("Add", do("Mul", z, beside(do("Div", scale, deviation))), beside(n.In(2)))
	b.Graph.TakeOver(n.Out(0), y)
	momentum := n.Float("momentum", 0.9)
	for i, statistic := range []*onnx.Value{mean, variance} {
		v := n.Out(1 + i)
		switch {
		case v == nil || v.Dead():
		case momentum == 0:
			b.Graph.TakeOver(v, statistic)
		default:
			d := n.In(3 + i).Type.DType
			kept := do("Mul", n.In(3+i), b.Scalar(d, momentum))
			b.Graph.TakeOver(v, do("Add", kept, do("Mul", statistic, b.Scalar(d, 1-momentum))))
		}
	}
}

// channelMeans is the mean of a value of that shape over all axes but 1: a vector.
func channelMeans(b *build.Builder, v *onnx.Value, shape []int64) *onnx.Value {
	drop := onnx.IntAttr("keepdims", 0)
	count := shape[0]
	if len(shape) > 2 {
		var axes []int
		for i, d := range shape[2:] {
			axes = append(axes, 2+i)
			count *= d
		}
		v = b.Op("ReduceSum", build.In(v, b.Axes(axes...)), drop)
	}
	v = b.Op("ReduceSum", build.In(v, b.Axes(0)), drop)
	if v == nil {
		return nil
	}
	return b.Op("Mul", build.In(v, b.Scalar(v.Type.DType, 1/float64(count))))
}
