package grad

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// activationRules: derivatives from the output where that suffices, so that
// the input need not be kept.
var activationRules = []Rule{
	{Op: "Tanh", Since: 6, Doc: "g*(1-y²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.bend(y))
	})},
	{Op: "Sigmoid", Since: 6, Doc: "g*y*(1-y)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.swing(y))
	})},
	{Op: "Relu", Since: 6, Doc: "g*sign(y): the sign of an output that is never negative is the mask", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		if c.steep() {
			return c.Kept(g, c.Do("Greater", y, c.Scalar(y, 0)), y)
		}
		return c.Times(g, c.Do("Sign", y))
	})},
	{Op: "LeakyRelu", Since: 6, Doc: "g where x > 0, alpha*g elsewhere", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		alpha := c.Node.Float("alpha", 0.01)
		slope := c.Plus(c.Scale(c.Mask(c.Do("Greater", x, c.Scalar(x, 0)), x), 1-alpha), c.Scalar(x, alpha))
		return c.Times(g, slope)
	})},
	{Op: "Gelu", Since: 20, Doc: "g*(Φ(x) + x*Φ'(x)); with approximate=tanh Φ(x) = σ(2u(x)), u the cubic", Grad: func(c *Context) {
		if c.Node.Str("approximate", "none") == "tanh" {
			c.Add(0, c.Times(c.Loose(0), tanhGeluSlope(c, c.In(0))))
			return
		}
		c.Add(0, c.Times(c.Loose(0), geluSlope(c, c.In(0))))
	}},
	{Op: "Dropout", Since: 7, Doc: "g*mask/(1-ratio)", Inputs: []int{0}, Fixed: []int{1}, Grad: gradDropout},
}

// geluSlope is Φ(x) + x φ(x) in eight operators: with a = x/√2,
// Φ = (1 + erf a)/2, a straight line that HardSigmoid computes in one step
// (it never clips, erf being within ±1, and takes no bfloat16 before opset 22), and
// x φ(x) = a exp(-a² - ln √π).
func geluSlope(c *Context, x *onnx.Value) *onnx.Value {
	a := c.Do("Mul", x, c.Scalar(x, math.Sqrt2/2))
	bell := c.Do("Exp", c.Minus(c.Scalar(x, -0.5*math.Log(math.Pi)), c.Do("Mul", a, a)))
	tail := c.Do("Mul", a, bell)
	erf := c.Do("Erf", a)
	if x.Type.DType == onnx.BFloat16 && c.Opset < 22 {
		return c.Plus(c.Plus(c.Scale(erf, 0.5), c.Scalar(x, 0.5)), tail)
	}
	phi := c.Op("HardSigmoid", build.In(erf), onnx.FloatAttr("alpha", 0.5), onnx.FloatAttr("beta", 0.5))
	return c.Plus(phi, tail)
}

// tanhGeluSlope is the derivative of x σ(v), v = x (k + 3m x²)... with
// k = 2√(2/π), m = 0.044715k: s + s (1-s) x v' = s (1 + (1-s) (k x + 3 m x³)).
func tanhGeluSlope(c *Context, x *onnx.Value) *onnx.Value {
	k := 2 * math.Sqrt(2/math.Pi)
	m := 0.044715 * k
	q := c.Do("Mul", x, x)
	v := c.Times(x, c.Plus(c.Scale(q, m), c.Scalar(x, k)))
	w := c.Times(x, c.Plus(c.Scale(q, 3*m), c.Scalar(x, k)))
	s := c.Do("Sigmoid", v)
	t := c.Times(w, c.rest(s))
	return c.Times(s, c.Plus(t, c.Scalar(x, 1)))
}

// gradDropout reads the mask, one byte an element. It stays an output of the
// forward node, without which ONNX Runtime would remove the node.
func gradDropout(c *Context) {
	g := c.Loose(0)
	if mode := c.In(2); mode == nil && c.Opset >= 12 {
		c.Add(0, g)
		return
	} else if on, ok := c.Ints(mode); ok && len(on) == 1 && on[0] == 0 {
		c.Add(0, g)
		return
	}
	mask := c.Mask(c.AddOut(1), c.In(0))
	ratio := c.In(1)
	if r, ok := ratio.Number(); ok || ratio == nil {
		if ratio == nil {
			r = c.Node.Float("ratio", 0.5)
		}
		if r >= 1 {
			c.Add(0, c.Times(g, mask))
			return
		}
		c.Add(0, c.Times(g, c.Scale(mask, 1/(1-r))))
		return
	}
	keep := c.Minus(c.Scalar(c.In(0), 1), c.CastTo(ratio, c.In(0)))
	c.Add(0, c.Over(c.Times(g, mask), keep))
}
