package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// normRules: normalizations over other axes than the last ones. Their kernels
// save no statistics, so these are computed again from x: a reduction is cheap
// beside a convolution, and x is kept anyway. With z = x - mean over n elements:
//
//	dx = scale/σ * (g - Σg/n - z * Σ(g z)/(σ² n))    dscale = Σ(g z)/σ    dbias = Σg
//
// Source: S. Ioffe, C. Szegedy, "Batch Normalization", 2015, section 3.
var normRules = []Rule{
	{Op: "BatchNormalization", Since: 9, Doc: "training: as above over all axes but the channels; inference: g*scale/σ, and what was computed as statistics gets dmean = -Σg scale/σ, dvar = -Σg(x-mean) scale/2σ³", Flows: statisticsFlow, Grad: gradBatchNorm},
	{Op: "InstanceNormalization", Since: 6, Doc: "as above over the spatial axes", Grad: func(c *Context) {
		x := c.In(0)
		if c.Rank(x) < 3 {
			c.Fail("rank %d", c.Rank(x))
			return
		}
		c.gradNorm(c.axesFrom(x, 2), c.Node.Float("epsilon", 1e-5))
	}},
	{Op: "GroupNormalization", Since: 18, Doc: "made of InstanceNormalization over groups, times scale, plus bias", Grad: decomposition(groupNorm)},
	{Op: "RMSNormalization", Since: 23, Doc: "x̂ = x/rms, h = g*scale: dx = (h - x̂*mean(h*x̂))/rms; dscale = Σ g*x̂", Grad: gradRMSNorm},
	{Op: "SimplifiedLayerNormalization", Since: 1, Doc: "as RMSNormalization, from the saved 1/rms", Grad: gradRMSNorm},
	{Op: "MeanVarianceNormalization", Since: 9, Doc: "made of z/(√mean(z²) + 1e-9), z = x - mean", Grad: decomposition(meanVariance)},
	{Op: "LRN", Since: 1, Doc: "u = bias + α/size Σx² over the window: dx = g/u^β - 2αβ/size * x * Σ g*y/u over the window", Grad: gradLRN},
	{Op: "LpNormalization", Since: 1, Doc: "p=2: (g - y*Σ g*y)/‖x‖; p=1: (g - sign(x)*Σ g*y)/‖x‖", Grad: gradLpNorm},
}

// channelShape gives a vector over channels the form that broadcasts to x.
func (c *Context) channelShape(v, x *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	return c.broadcastAlong(v, 1, x)
}

// broadcastAlong gives a vector the form that broadcasts to x along an axis.
func (c *Context) broadcastAlong(v *onnx.Value, axis int, x *onnx.Value) *onnx.Value {
	shape := []int64{-1}
	for range c.Rank(x) - 1 - axis {
		shape = append(shape, 1)
	}
	return c.ReshapeTo(v, shape...)
}

// inverseRoot is 1/√(v+ε).
func (c *Context) inverseRoot(v *onnx.Value, eps float64) *onnx.Value {
	return c.Do("Reciprocal", c.Do("Sqrt", c.Plus(v, c.Scalar(v, eps))))
}

// perElement divides by the number of elements along axes of x.
func (c *Context) perElement(v, x *onnx.Value, axes []int) *onnx.Value {
	if v == nil {
		return nil
	}
	n := c.e.count(x, axes, v.Type.DType)
	if k, ok := n.Number(); ok {
		return c.Scale(v, 1/k)
	}
	return c.Over(v, n)
}

// sumSquares is Σ v² over axes, which stay as ones.
func (c *Context) sumSquares(v *onnx.Value, axes []int) *onnx.Value {
	return c.Op("ReduceSumSquare", build.In(v, c.e.b.Axes(axes...)), onnx.IntAttr("keepdims", 1))
}

// statisticsFlow is false for running statistics: stored, or not what the output is
// computed from.
func statisticsFlow(n *onnx.Node, i int) bool {
	v := n.In(i).Behind("Identity", "Cast")
	return i < statisticsFrom || v.Producer != nil && n.Int("training_mode", 0) == 0
}

func gradBatchNorm(c *Context) {
	x := c.In(0)
	if c.Rank(x) < 2 {
		c.Fail("rank %d", c.Rank(x))
		return
	}
	eps := c.Node.Float("epsilon", 1e-5)
	training := c.Node.Int("training_mode", 0) != 0
	if c.Opset < 14 {
		training = len(c.Node.Outputs) > 1
	}
	if training {
		c.gradNorm(c.allBut(x, 1), eps)
		return
	}
	c.gradFixedNorm(c.Loose(0), c.In(3), c.inverseRoot(c.In(4), eps))
}

// gradFixedNorm is the derivative where mean and 1/σ, vectors over channels, do
// not depend on x.
func (c *Context) gradFixedNorm(g, mean, inv *onnx.Value) {
	of := c.ofOneType(c.In(0), c.In(1), g, mean, inv)
	x, scale, g, mean, inv := of[0], of[1], of[2], of[3], of[4]
	outer := c.allBut(x, 1)
	var sum, dot *onnx.Value
	if c.Needs(2) || c.Needs(3) {
		sum = c.Sum(c.Expand(g, x), false, outer...)
		c.AddCast(2, sum)
	}
	if c.Needs(1) || c.Needs(4) {
		dot = c.Do("Mul", c.Sum(c.Times(g, c.Minus(x, c.channelShape(mean, x))), false, outer...), inv)
		c.AddCast(1, dot)
	}
	if c.Needs(3) {
		c.AddCast(3, c.Do("Neg", c.Do("Mul", sum, c.Do("Mul", scale, inv))))
	}
	if c.Needs(4) {
		c.AddCast(4, c.Scale(c.Do("Mul", c.Do("Mul", dot, scale), c.Do("Mul", inv, inv)), -0.5))
	}
	if c.Needs(0) {
		c.AddCast(0, c.Times(g, c.channelShape(c.Do("Mul", scale, inv), x)))
	}
}

// gradNorm is the derivative where the statistics are taken over axes of x.
func (c *Context) gradNorm(axes []int, eps float64) {
	of := c.ofOneType(c.In(0), c.In(1), c.Grad(0))
	x, scale, g := of[0], of[1], of[2]
	sum := c.Sum(g, true, axes...)
	if c.Needs(2) {
		c.AddCast(2, c.toChannels(sum))
	}
	if !c.Needs(0) && !c.Needs(1) {
		return
	}
	z := c.Minus(x, c.Mean(x, true, axes...))
	inv := c.inverseRoot(c.perElement(c.sumSquares(z, axes), x, axes), eps)
	c.normBackward(g, z, sum, inv, scale, axes)
}

// normBackward hands over dscale and dx; all statistics have ones in place of
// axes.
func (c *Context) normBackward(g, z, sum, inv, scale *onnx.Value, axes []int) {
	x := c.In(0)
	dot := c.Sum(c.Do("Mul", g, z), true, axes...)
	if c.Needs(1) {
		c.AddCast(1, c.toChannels(c.Do("Mul", dot, inv)))
	}
	if c.Needs(0) {
		// 1/σ by the number of elements first: in a half type Σ(g z)/σ² overflows long before dx.
		pull := c.Do("Mul", c.Do("Mul", dot, inv), c.perElement(inv, x, axes))
		t := c.Minus(c.Minus(g, c.perElement(sum, x, axes)), c.Do("Mul", z, pull))
		c.AddCast(0, c.Do("Mul", t, c.Do("Mul", inv, c.channelShape(scale, x))))
	}
}

// ofOneType has values in the wider type where they are not of one already: a BatchNormalization
// of half numbers may have its scale, bias and statistics in float32.
func (c *Context) ofOneType(list ...*onnx.Value) []*onnx.Value {
	types := map[onnx.DType]bool{}
	for _, v := range list {
		if v != nil {
			types[v.Type.DType] = true
		}
	}
	if len(types) < 2 {
		return list
	}
	wide := onnx.Float32
	if types[onnx.Float64] {
		wide = onnx.Float64
	}
	for i, v := range list {
		list[i] = c.cast(v, wide)
	}
	return list
}

// toChannels sums a statistic [1 or n,c,1...] to [c].
func (c *Context) toChannels(v *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	if v.Type.Shape[0].Is(1) {
		return c.ReshapeTo(v, -1)
	}
	return c.Sum(v, false, c.allBut(v, 1)...)
}

// groupNorm writes the node as exporters write GroupNorm below opset 18.
func groupNorm(c *Context) *onnx.Value {
	x, scale, bias := c.In(0), c.In(1), c.In(2)
	rank := c.Rank(x)
	groups := c.Node.Int("num_groups", 1)
	if rank < 2 || c.e.b.Err() != nil {
		c.Fail("rank %d", rank)
		return nil
	}
	s := x.Type.Shape
	if groups < 1 {
		c.Fail("num_groups %d", groups)
		return nil
	}
	if !c.table(groups) {
		return nil
	}
	ones, zeros := slices.Repeat([]float64{1}, int(groups)), make([]float64, groups)
	joined := c.ReshapeDims(x, onnx.Shape{s[0], onnx.Static(groups), s[1:].Elements().Div(onnx.Static(groups))})
	y := c.Op("InstanceNormalization", build.In(joined,
		c.Const(onnx.FloatTensor(x.Type.DType, ones, groups)), c.Const(onnx.FloatTensor(x.Type.DType, zeros, groups))),
		onnx.FloatAttr("epsilon", c.Node.Float("epsilon", 1e-5)))
	y = c.Reshape(y, x)
	if c.Opset < 21 { // one number a group
		channels, ok := s[1].Int()
		if !ok || channels%groups != 0 {
			c.Fail("%s channels in %d groups", s[1], groups)
			return nil
		}
		spread := func(v *onnx.Value) *onnx.Value {
			return c.ReshapeTo(c.Do("Expand", c.Unsqueeze(v, 1), c.IntList(groups, channels/groups)), channels)
		}
		scale, bias = spread(scale), spread(bias)
	}
	return c.Plus(c.Do("Mul", y, c.channelShape(scale, x)), c.channelShape(bias, x))
}

func gradRMSNorm(c *Context) {
	x, g := c.In(0), c.Grad(0)
	axis := c.Axis("axis", -1, x)
	if c.e.b.Err() != nil {
		return
	}
	if o := c.Out(1); o != nil && c.e.grads[o] != nil {
		c.Fail("a gradient of its saved statistics")
		return
	}
	inner := c.axesFrom(x, axis)
	var inv *onnx.Value
	if c.Node.Is("SimplifiedLayerNormalization") { // saves it
		inv = c.CastTo(c.AddOut(1), x)
	} else {
		inv = c.inverseRoot(c.perElement(c.sumSquares(x, inner), x, inner), c.Node.Float("epsilon", 1e-5))
	}
	c.lastNormBackward(g, c.Do("Mul", x, inv), inv, axis, false)
}

// gradLRN sums over the window of channels with an average pool along them.
func gradLRN(c *Context) {
	x, y, g := c.In(0), c.Out(0), c.Grad(0)
	size := c.Node.Int("size", 1)
	alpha, beta, bias := c.Node.Float("alpha", 1e-4), c.Node.Float("beta", 0.75), c.Node.Float("bias", 1)
	if c.Rank(x) < 3 || c.e.b.Err() != nil {
		c.Fail("rank %d", c.Rank(x))
		return
	}
	s := x.Type.Shape
	planes := onnx.Shape{s[0], onnx.Static(1), s[1], s[2:].Elements()}
	before := (size - 1) / 2
	pool := func(v *onnx.Value, first, last int64) *onnx.Value { // the mean over the window
		p := c.Op("AveragePool", build.In(c.ReshapeDims(v, planes)), onnx.IntsAttr("kernel_shape", size, 1),
			onnx.IntsAttr("pads", first, 0, last, 0), onnx.IntAttr("count_include_pad", 1))
		return c.Reshape(p, x)
	}
	u := c.Plus(c.Scale(pool(c.Do("Mul", x, x), before, size-1-before), alpha), c.Scalar(x, bias))
	pull := pool(c.Do("Div", c.Do("Mul", g, y), u), size-1-before, before)
	straight := c.Do("Mul", g, c.Do("Pow", u, c.Scalar(x, -beta)))
	c.Add(0, c.Minus(straight, c.Do("Mul", c.Scale(x, 2*alpha*beta), pull)))
}

func gradLpNorm(c *Context) {
	x, y, g := c.In(0), c.Out(0), c.Grad(0)
	axis := c.Axis("axis", -1, x)
	op, along := "ReduceL2", y
	if c.Node.Int("p", 2) == 1 {
		op, along = "ReduceL1", c.Do("Sign", x)
	}
	norm := c.Op(op, build.In(x, c.IntList(int64(axis))), onnx.IntAttr("keepdims", 1))
	dot := c.Sum(c.Do("Mul", g, y), true, axis)
	c.Add(0, c.overNorm(c.Minus(g, c.Do("Mul", along, dot)), norm))
}

// meanVariance is ONNX's definition, its variance as a mean of squares of z, which
// loses nothing where the mean is large.
func meanVariance(c *Context) *onnx.Value {
	x := c.In(0)
	given := c.Node.Ints("axes")
	if given == nil {
		given = []int64{0, 2, 3}
	}
	axes := make([]int, len(given))
	for i, a := range given {
		axes[i] = c.axis(a, x)
	}
	z := c.Minus(x, c.Mean(x, true, axes...))
	deviation := c.Do("Sqrt", c.Mean(c.Do("Mul", z, z), true, axes...))
	return c.Do("Div", z, c.Plus(deviation, c.Scalar(x, 1e-9)))
}
