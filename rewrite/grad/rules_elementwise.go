package grad

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// elementwiseRules: arithmetic and functions of one variable. A row's formula
// is written with x, y = op(x), g = the gradient of y.
var elementwiseRules = []Rule{
	{Op: "Add", Since: 7, Doc: "da = g, db = g", Grad: func(c *Context) {
		c.AddBroadcast(0, c.Loose(0))
		c.AddBroadcast(1, c.Loose(0))
	}},
	{Op: "Sub", Since: 7, Doc: "da = g, db = -g", Grad: func(c *Context) {
		c.AddBroadcast(0, c.Loose(0))
		if c.Needs(1) {
			// Summed first: the negation is of the smaller one.
			c.Add(1, c.Scale(c.Unbroadcast(c.Loose(0), c.Out(0), c.In(1)), -1))
		}
	}},
	{Op: "Mul", Since: 7, Doc: "da = g*b, db = g*a, nothing where the other is the number 0", Grad: gradMul},
	{Op: "Div", Since: 7, Doc: "da = g/b, db = -g/b*y", Grad: gradDiv},
	{Op: "Sum", Since: 8, Doc: "dx_i = g", Grad: func(c *Context) {
		for i := range c.Node.Inputs {
			c.AddBroadcast(i, c.Loose(0))
		}
	}},
	{Op: "Mean", Since: 8, Doc: "dx_i = g/n", Grad: func(c *Context) {
		g := c.Scale(c.Loose(0), 1/float64(len(c.Node.Inputs)))
		for i := range c.Node.Inputs {
			c.AddBroadcast(i, g)
		}
	}},
	{Op: "Neg", Since: 6, Doc: "-g", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value { return c.Scale(g, -1) })},
	{Op: "Identity", Since: 1, Doc: "g", Grad: func(c *Context) { c.Add(0, c.Loose(0)) }},
	{Op: "Abs", Since: 6, Doc: "g*sign(x)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.Do("Sign", x))
	})},
	{Op: "Exp", Since: 6, Doc: "g*y", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value { return c.Times(g, y) })},
	{Op: "Log", Since: 6, Doc: "g/x", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value { return c.Over(g, x) })},
	{Op: "Sqrt", Since: 6, Doc: "g/(2y)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Over(c.Scale(g, 0.5), y)
	})},
	{Op: "Reciprocal", Since: 6, Doc: "-g*y*y", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Scale(c.Times(c.Times(g, y), y), -1)
	})},
	{Op: "Erf", Since: 9, Doc: "g*2/√π*exp(-x²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		// The factor goes into the exponent: one operator less.
		e := c.Do("Exp", c.Minus(c.Scalar(x, math.Log(2/math.Sqrt(math.Pi))), c.Do("Mul", x, x)))
		return c.Times(g, e)
	})},
	{Op: "Sin", Since: 7, Doc: "g*cos(x)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.Do("Cos", x))
	})},
	{Op: "Cos", Since: 7, Doc: "-g*sin(x)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Scale(c.Times(g, c.Do("Sin", x)), -1)
	})},
	{Op: "Tan", Since: 7, Doc: "g*(1+y²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.Plus(c.Do("Mul", y, y), c.Scalar(x, 1)))
	})},
	{Op: "Asin", Since: 7, Doc: "g/√(1-x²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Over(g, c.Do("Sqrt", c.Minus(c.Scalar(x, 1), c.Do("Mul", x, x))))
	})},
	{Op: "Acos", Since: 7, Doc: "-g/√(1-x²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Scale(c.Over(g, c.Do("Sqrt", c.Minus(c.Scalar(x, 1), c.Do("Mul", x, x)))), -1)
	})},
	{Op: "Atan", Since: 7, Doc: "g/(1+x²)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Over(g, c.Plus(c.Do("Mul", x, x), c.Scalar(x, 1)))
	})},
	{Op: "Sinh", Since: 9, Doc: "g*cosh(x)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.Do("Cosh", x))
	})},
	{Op: "Cosh", Since: 9, Doc: "g*sinh(x)", Grad: unary(func(c *Context, g, x, y *onnx.Value) *onnx.Value {
		return c.Times(g, c.Do("Sinh", x))
	})},
	{Op: "Mod", Since: 10, Doc: "da = g, db = -g*trunc(a/b), without fmod floor", Grad: func(c *Context) {
		c.AddBroadcast(0, c.Loose(0))
		if c.Needs(1) {
			q := c.Do("Div", c.In(0), c.In(1))
			var whole *onnx.Value
			if c.Node.Int("fmod", 0) != 0 {
				whole = c.Do("Mul", c.Do("Floor", c.Do("Abs", q)), c.Do("Sign", q))
			} else {
				whole = c.Do("Floor", q)
			}
			c.AddBroadcast(1, c.Scale(c.Times(c.Loose(0), whole), -1))
		}
	}},
	{Op: "Pow", Since: 7, Doc: "dx = g*n*x^(n-1), dn = g*y*log(x) where x > 0", Grad: gradPow},
	{Op: "Min", Since: 8, Doc: "g to the inputs equal to y, shared evenly where several are; of x and a constant, g where x is less", Grad: gradExtreme},
	{Op: "Max", Since: 8, Doc: "g to the inputs equal to y, shared evenly where several are; of x and a constant, g where x is greater", Grad: gradExtreme},
	{Op: "Clip", Since: 11, Doc: "g strictly inside the bounds; a bound's is the sum of g where it holds", Grad: gradClip},
	{Op: "Where", Since: 9, Doc: "da = g where cond, db = g elsewhere", Inputs: []int{1, 2}, Grad: gradWhere},
	{Op: "Cast", Since: 6, Doc: "g, cast back", Grad: func(c *Context) { c.AddCast(0, c.Loose(0)) }},
	{Op: "CastLike", Since: 15, Doc: "g, cast back", Inputs: []int{0}, Fixed: []int{1}, Grad: func(c *Context) { c.AddCast(0, c.Loose(0)) }},
}

// unary makes the rule of a function of one variable from its formula. The
// gradient may be loose; what multiplies it has the full shape.
func unary(f func(c *Context, g, x, y *onnx.Value) *onnx.Value) func(*Context) {
	return func(c *Context) { c.Add(0, f(c, c.Loose(0), c.In(0), c.Out(0))) }
}

func gradMul(c *Context) {
	g, a, b := c.Loose(0), c.In(0), c.In(1)
	if a == b {
		c.Add(0, c.Times(c.Scale(g, 2), a))
		return
	}
	for i, other := range []*onnx.Value{b, a} {
		if !c.Needs(i) {
			continue
		}
		if x, ok := other.Number(); ok && x == 0 && len(other.Type.Shape) == 0 {
			c.Add(i, c.Zeros(c.In(i))) // also where g is infinite
			continue
		}
		c.AddBroadcast(i, c.Times(g, other))
	}
}

func gradDiv(c *Context) {
	g, b := c.Loose(0), c.In(1)
	var t *onnx.Value
	if x, ok := b.Number(); ok && x != 0 && len(b.Type.Shape) == 0 {
		t = c.Scale(g, 1/x)
	} else {
		t = c.Over(g, b)
	}
	c.AddBroadcast(0, t)
	if c.Needs(1) {
		c.Add(1, c.Scale(c.Unbroadcast(c.Times(t, c.Out(0)), c.Out(0), b), -1))
	}
}

func gradPow(c *Context) {
	g, x, n := c.Loose(0), c.In(0), c.In(1)
	if c.Needs(0) {
		c.AddBroadcast(0, powBase(c, g, x, n))
	}
	if c.Needs(1) {
		// At x <= 0 the logarithm does not exist; a zero stands for it.
		safe := c.Where(c.Do("Greater", x, c.Scalar(x, 0)), x, c.Scalar(x, 1))
		c.AddBroadcast(1, c.CastTo(c.Times(c.Times(g, c.Out(0)), c.Do("Log", safe)), n))
	}
}

func powBase(c *Context, g, x, n *onnx.Value) *onnx.Value {
	k, ok := n.Number()
	switch {
	case ok && k == 0:
		return c.Zeros(x)
	case ok && k == 1:
		return g
	case ok && k == 2:
		return c.Times(c.Scale(g, 2), x)
	case ok && k == 3:
		return c.Times(c.Times(c.Scale(g, 3), x), x)
	case ok:
		return c.Times(c.Scale(g, k), c.Do("Pow", x, c.Scalar(x, k-1)))
	}
	// Where n is 0 there is no gradient, also at x = 0, where x^-1 is no number.
	n = c.CastTo(n, x)
	least := c.Where(c.Do("Equal", n, c.Scalar(n, 0)), c.Scalar(n, 1), n)
	return c.Times(c.Times(g, n), c.Do("Pow", x, c.Minus(least, c.Scalar(n, 1))))
}

// gradClip gives nothing at a bound, as the derivatives of PyTorch's clamp,
// hardtanh and ReLU6 do.
func gradClip(c *Context) {
	g, x, low, high := c.Loose(0), c.In(0), c.In(1), c.In(2)
	if quantized(x) {
		g = c.Grad(0)
		c.Add(0, c.Times(g, c.Mask(c.Do("Equal", x, c.Out(0)), g)))
		return
	}
	if c.Needs(1) {
		below := c.Mask(c.Do("LessOrEqual", x, low), x)
		if high != nil { // which holds where the bounds cross
			below = c.Do("Mul", below, c.Mask(c.Do("Less", low, high), x))
		}
		c.AddBroadcast(1, c.Times(g, below))
	}
	if c.Needs(2) {
		held := x
		if low != nil {
			held = c.Do("Max", x, low)
		}
		c.AddBroadcast(2, c.Kept(g, c.Do("GreaterOrEqual", held, high), x))
	}
	if !c.Needs(0) {
		return
	}
	if low != nil {
		g = c.Kept(g, c.Do("Greater", x, low), x)
	}
	if high != nil {
		g = c.Kept(g, c.Do("Less", x, high), x)
	}
	c.Add(0, g)
}

// gradExtreme shares the gradient among the inputs that are the extreme, as
// torch.maximum does, those too that need none. Beside a constant it is a
// bound, for which exporters write clamp, and is differentiated as Clip.
func gradExtreme(c *Context) {
	g, y := c.Loose(0), c.Out(0)
	if i, ok := bounded(c); ok {
		beyond := map[string]string{"Max": "Greater", "Min": "Less"}[c.Node.OpType()]
		c.AddBroadcast(i, c.Kept(g, c.Do(beyond, c.In(i), c.In(1-i)), y))
		return
	}
	of, extreme := c.comparable(c.Node.Inputs, y, func(in ...*onnx.Value) *onnx.Value { return c.Do(c.Node.OpType(), in...) })
	masks := make([]*onnx.Value, len(of))
	var ties *onnx.Value
	for i, v := range of {
		masks[i] = c.Mask(c.Do("Equal", v, extreme), y)
		ties = c.plus(ties, masks[i])
	}
	if len(masks) > 1 {
		g = c.Over(g, ties)
	}
	for i := range masks {
		switch {
		case c.Needs(i) && c.steep():
			c.AddBroadcast(i, c.Kept(g, c.Do("Equal", of[i], extreme), y))
		case c.Needs(i):
			c.AddBroadcast(i, c.Times(g, masks[i]))
		}
	}
}

// bounded returns which of two inputs is bounded by the other, a constant.
func bounded(c *Context) (int, bool) {
	if len(c.Node.Inputs) != 2 {
		return 0, false
	}
	for i := range 2 {
		if c.Needs(i) && !c.Needs(1-i) && c.In(1-i).IsConstant() {
			return i, true
		}
	}
	return 0, false
}

// gradWhere multiplies by a mask: Where itself would take two more buffers
// inside its kernel. Where the gradient could be infinite it must not, since
// 0·∞ is not a number: behind a guard against NaN see gradGuard.
func gradWhere(c *Context) {
	if gradGuard(c) {
		return
	}
	g, cond := c.Loose(0), c.In(0)
	y := c.Out(0)
	if c.Needs(1) {
		c.AddBroadcast(1, c.Kept(g, cond, y))
	}
	if c.Needs(2) {
		c.AddBroadcast(2, c.Kept(g, c.Do("Not", cond), y))
	}
}

// gradGuard covers Where(blank, 0, p) with p = Softmax(x), which exporters
// write around attention: rows that are masked as a whole become zeros, by what
// IsNaN says of p or by one element a row. Their gradient must be zero as well, so the
// softmax is differentiated from the guarded output, past the Where.
func gradGuard(c *Context) bool {
	p := c.In(2)
	if p == nil || p.Producer == nil || !p.Producer.Is("Softmax") || !c.In(1).IsZero() || c.Rank(p) != c.Rank(c.Out(0)) {
		return false
	}
	cond, uses := c.In(0), 1
	switch test := cond.Producer; {
	case test != nil && test.Is("IsNaN") && test.In(0) == p:
		uses = 2
	case !c.oneARow(cond, p):
		return false
	}
	if len(p.Uses()) != uses {
		return false
	}
	x := p.Producer.In(0)
	if c.e.needs[x] {
		axis := c.axis(p.Producer.Int("axis", -1), x)
		c.e.addDense(x, softmaxBackward(c, c.Grad(0), c.Out(0), axis))
	}
	return true
}

// oneARow reports a condition that is the same in all of a row of a softmax.
func (c *Context) oneARow(cond, p *onnx.Value) bool {
	axis := c.axis(p.Producer.Int("axis", -1), p) - c.Rank(p) + c.Rank(cond)
	return axis < 0 || cond.Type.Shape[axis].Is(1)
}
