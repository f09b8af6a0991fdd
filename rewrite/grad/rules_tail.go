package grad

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// tailRules: the operators that few models use. Activations are differentiated
// from their output where that says as much as the input.
var tailRules = []Rule{
	{Op: "Elu", Since: 6, Doc: "g for y > 0, g*(y+alpha) elsewhere", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		alpha := c.Node.Float("alpha", 1)
		return c.Times(g, c.stepped(y, 1, alpha, 1))
	})},
	{Op: "Selu", Since: 6, Doc: "g*gamma for y > 0, g*(y+alpha*gamma) elsewhere", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		alpha, gamma := c.Node.Float("alpha", 1.6732632423543772), c.Node.Float("gamma", 1.0507009873554805)
		return c.Times(g, c.stepped(y, 1, alpha*gamma, gamma))
	})},
	{Op: "Celu", Since: 12, Doc: "g for y > 0, g*(y/alpha+1) elsewhere", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.stepped(y, 1/c.Node.Float("alpha", 1), 1, 1))
	})},
	{Op: "Softplus", Since: 1, Doc: "g*sigmoid(x)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.Do("Sigmoid", x))
	})},
	{Op: "Softsign", Since: 1, Doc: "g*(1-|y|)²", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		t := c.Minus(c.Scalar(y, 1), c.Do("Abs", y))
		return c.Times(g, c.Do("Mul", t, t))
	})},
	{Op: "HardSigmoid", Since: 6, Doc: "g*alpha where 0 < y < 1", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		inside := c.Do("Sign", c.swing(y))
		if c.steep() {
			return c.Kept(c.Scale(g, c.Node.Float("alpha", 0.2)), c.Do("Greater", inside, c.Scalar(y, 0)), y)
		}
		return c.Times(g, c.Scale(inside, c.Node.Float("alpha", 0.2)))
	})},
	{Op: "HardSwish", Since: 14, Doc: "made of x*HardSigmoid(x)", Grad: decomposition(func(c *Context) *onnx.Value {
		x := c.In(0)
		y := c.Do("Mul", x, c.Op("HardSigmoid", build.In(x), onnx.FloatAttr("alpha", 1.0/6), onnx.FloatAttr("beta", 0.5)))
		if c.steep() {
			return c.Where(c.Do("Greater", x, c.Scalar(x, -3)), y, c.Scalar(x, 0))
		}
		return y
	})},
	{Op: "Mish", Since: 18, Doc: "made of x*Tanh(Softplus(x))", Grad: decomposition(func(c *Context) *onnx.Value {
		return c.Do("Mul", c.In(0), c.Do("Tanh", c.Do("Softplus", c.In(0))))
	})},
	{Op: "Swish", Since: 24, Doc: "made of x*Sigmoid(alpha*x)", Grad: decomposition(func(c *Context) *onnx.Value {
		x := c.In(0)
		return c.Do("Mul", x, c.Do("Sigmoid", c.Scale(x, c.Node.Float("alpha", 1))))
	})},
	{Op: "ThresholdedRelu", Since: 10, Doc: "g where x > alpha", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Kept(g, c.Do("Greater", x, c.Scalar(x, c.Node.Float("alpha", 1))), x)
	})},
	{Op: "Shrink", Since: 9, Doc: "g where |x| > lambd", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Kept(g, c.Do("Greater", c.Do("Abs", x), c.Scalar(x, c.Node.Float("lambd", 0.5))), x)
	})},
	{Op: "PRelu", Since: 7, Doc: "dx = g where x > 0, g*slope elsewhere; dslope = g*min(x, 0)", Grad: gradPRelu},
	{Op: "Asinh", Since: 9, Doc: "g/√(x²+1)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Over(g, c.Do("Sqrt", c.Plus(c.Do("Mul", x, x), c.Scalar(x, 1))))
	})},
	{Op: "Acosh", Since: 9, Doc: "g/√(x²-1)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Over(g, c.Do("Sqrt", c.Minus(c.Do("Mul", x, x), c.Scalar(x, 1))))
	})},
	{Op: "Atanh", Since: 9, Doc: "g/(1-x²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Over(g, c.Minus(c.Scalar(x, 1), c.Do("Mul", x, x)))
	})},
	{Op: "CumSum", Since: 11, Doc: "CumSum of g in the other direction", Inputs: []int{0}, Grad: func(c *Context) {
		c.Add(0, c.Op("CumSum", build.In(c.Grad(0), c.In(1)),
			onnx.IntAttr("exclusive", c.Node.Int("exclusive", 0)), onnx.IntAttr("reverse", 1-c.Node.Int("reverse", 0))))
	}},
	{Op: "CumProd", Since: 26, Doc: "dx_i = e_i r_i, e the product before i, r_i = g_i + x_{i+1} r_{i+1}", Inputs: []int{0}, Grad: gradCumProd},
	{Op: "TopK", Since: 10, Doc: "g added at the indices", Inputs: []int{0}, Grad: func(c *Context) {
		c.AddScatter(0, c.Axis("axis", -1, c.In(0)), c.AddOut(1), c.Grad(0))
	}},
	{Op: "CenterCropPad", Since: 18, Doc: "g, cropped where x was padded, and the other way round", Inputs: []int{0}, Grad: func(c *Context) {
		c.Add(0, c.Op("CenterCropPad", build.In(c.Grad(0), c.ShapeOf(c.In(0)))))
	}},
	{Op: "ReverseSequence", Since: 10, Doc: "g, reversed again", Inputs: []int{0}, Grad: func(c *Context) {
		c.Add(0, c.Op("ReverseSequence", build.In(c.Grad(0), c.In(1)),
			onnx.IntAttr("batch_axis", c.Node.Int("batch_axis", 1)), onnx.IntAttr("time_axis", c.Node.Int("time_axis", 0))))
	}},
	{Op: "Einsum", Since: 12, Doc: "made of Transpose, Reshape, MatMul and ReduceSum", Grad: decomposition(einsum)},
	{Op: "Resize", Since: 11, Doc: "g times the transposed interpolation matrix of each axis", Inputs: []int{0}, Fixed: []int{1, 2}, Grad: gradResize},
	{Op: "Hardmax", Since: 1, Doc: "no gradient", None: "its output is constant but for jumps"},
}

// contribRules: activations that ONNX Runtime's optimizer writes.
var contribRules = []Rule{
	{Domain: "com.microsoft", Op: "Gelu", Since: 1, Doc: "as Gelu", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, geluSlope(c, x))
	})},
	{Domain: "com.microsoft", Op: "QuickGelu", Since: 1, Doc: "g*(s + u s (1-s)), u = alpha*x, s = sigmoid(u)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, swishSlope(c, x, c.Node.Float("alpha", 1.702)))
	})},
	{Domain: "com.microsoft", Op: "FastGelu", Since: 1, Doc: "as Gelu with approximate=tanh, of x plus bias", Grad: biased(tanhGeluSlope)},
	{Domain: "com.microsoft", Op: "BiasGelu", Since: 1, Doc: "as Gelu, of x plus bias", Grad: biased(geluSlope)},
}

// biased makes the rule of an activation of x plus an optional bias.
func biased(slope func(*Context, *onnx.Value) *onnx.Value) func(*Context) {
	return func(c *Context) {
		x := c.In(0)
		if bias := c.In(1); bias != nil {
			x = c.Plus(x, bias)
		}
		g := c.Times(c.Grad(0), slope(c, x))
		c.Add(0, g)
		c.AddBroadcast(1, g)
	}
}

// swishSlope is the slope of x*sigmoid(alpha*x).
func swishSlope(c *Context, x *onnx.Value, alpha float64) *onnx.Value {
	u := c.Scale(x, alpha)
	s := c.Do("Sigmoid", u)
	return c.Do("Mul", s, c.Plus(c.Do("Mul", u, c.rest(s)), c.Scalar(x, 1)))
}

// stepped is the slope of an exponential unit from its output: high for y > 0,
// y*rate + low elsewhere.
func (c *Context) stepped(y *onnx.Value, rate, low, high float64) *onnx.Value {
	slope := c.Plus(c.Scale(c.Do("Min", y, c.Scalar(y, 0)), rate), c.Scalar(y, low))
	if low == high {
		return slope
	}
	return c.Plus(slope, c.Scale(c.Mask(c.Do("Greater", y, c.Scalar(y, 0)), y), high-low))
}

func gradPRelu(c *Context) {
	x, slope, g := c.In(0), c.In(1), c.Loose(0)
	if c.Needs(1) {
		c.AddBroadcast(1, c.Times(g, c.Do("Min", x, c.Scalar(x, 0))))
	}
	if c.Needs(0) {
		// slope + (1-slope)*[x > 0]; the middle factor has the slope's shape.
		up := c.Mask(c.Do("Greater", x, c.Scalar(x, 0)), x)
		c.Add(0, c.Times(g, c.Plus(c.Do("Mul", up, c.Minus(c.Scalar(x, 1), slope)), slope)))
	}
}
