package grad

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// reduceRules: reductions over axes. A gradient arrives with the reduced axes
// missing or of extent one; with ones in their place it broadcasts, so that the
// gradient of a sum is not stretched before something asks for it.
var reduceRules = []Rule{
	{Op: "ReduceSum", Since: 1, Doc: "g", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value { return r.g })},
	{Op: "ReduceMean", Since: 1, Doc: "g/n", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value {
		return c.perElement(r.g, c.In(0), r.axes)
	})},
	{Op: "ReduceSumSquare", Since: 1, Doc: "2gx", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value {
		return c.Times(c.Scale(r.g, 2), c.In(0))
	})},
	{Op: "ReduceL1", Since: 1, Doc: "g*sign(x)", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value {
		return c.Times(r.g, c.Do("Sign", c.In(0)))
	})},
	{Op: "ReduceL2", Since: 1, Doc: "g*x/y, nothing where y is 0", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value {
		return c.Times(c.overNorm(r.g, r.y), c.In(0))
	})},
	{Op: "ReduceLogSum", Since: 1, Doc: "g/exp(y)", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value {
		return c.Over(r.g, c.Do("Exp", r.y))
	})},
	{Op: "ReduceLogSumExp", Since: 1, Doc: "g*exp(x-y)", Inputs: []int{0}, Grad: reduction(func(c *Context, r reduced) *onnx.Value {
		return c.Times(r.g, c.Do("Exp", c.Minus(c.In(0), r.y)))
	})},
	{Op: "ReduceMax", Since: 1, Doc: "g to the elements equal to y, shared evenly", Inputs: []int{0}, Grad: reduction(gradReduceExtreme)},
	{Op: "ReduceMin", Since: 1, Doc: "g to the elements equal to y, shared evenly", Inputs: []int{0}, Grad: reduction(gradReduceExtreme)},
	{Op: "ReduceProd", Since: 1, Doc: "g times the product of the others, which zeros are kept out of", Inputs: []int{0}, Grad: reduction(gradReduceProd)},
}

// overNorm is a/norm, and 0 where the norm is: PyTorch's derivative of a norm at
// zero, without which a row of zeros, as behind a ReLU, has no number for a gradient
// even where it is normalized with a bound from below.
func (c *Context) overNorm(a, norm *onnx.Value) *onnx.Value {
	return c.Where(c.Do("Equal", norm, c.Scalar(norm, 0)), c.Scalar(a, 0), c.Over(a, norm))
}

// reduced is a reduction's gradient and output with ones in place of the
// reduced axes.
type reduced struct {
	g, y *onnx.Value
	axes []int
}

func gradReduceExtreme(c *Context, r reduced) *onnx.Value {
	of, y := c.comparable([]*onnx.Value{c.In(0)}, r.y, func(in ...*onnx.Value) *onnx.Value {
		if len(r.axes) == 0 {
			return in[0]
		}
		op := "ReduceMax"
		if c.Node.Is("ReduceMin") {
			op = "ReduceMin"
		}
		return c.Op(op, build.In(in[0], c.e.b.Axes(r.axes...)), onnx.IntAttr("keepdims", 1))
	})
	mask := c.Mask(c.Do("Equal", of[0], y), r.y)
	return c.Times(c.Over(r.g, c.Sum(mask, true, r.axes...)), mask)
}

// gradReduceProd divides the product by x, with ones in the place of zeros; what
// has a zero among the others gets nothing.
func gradReduceProd(c *Context, r reduced) *onnx.Value {
	x := c.withoutZeros(c.In(0))
	product, zeros := x.safe, x.zero
	if len(r.axes) > 0 {
		product = c.Op("ReduceProd", build.In(x.safe, c.e.b.Axes(r.axes...)), onnx.IntAttr("keepdims", 1))
		zeros = c.Sum(x.zero, true, r.axes...)
	}
	return x.others(c.Times(r.g, product), zeros)
}

// nonzero are factors of products: safe has ones where they are zero, and zero is 1 there
// and 0 elsewhere.
type nonzero struct {
	c          *Context
	safe, zero *onnx.Value
}

func (c *Context) withoutZeros(x *onnx.Value) nonzero {
	zero := c.Mask(c.Do("Equal", x, c.Scalar(x, 0)), x)
	return nonzero{c, c.Plus(x, zero), zero}
}

// others takes each factor out of products of safe factors: what is left, nothing where
// another one of the zeros of its product was.
func (x nonzero) others(products, zeros *onnx.Value) *onnx.Value {
	return x.c.Times(x.c.Over(products, x.safe), x.c.Mask(x.c.Do("Equal", zeros, x.zero), x.safe))
}

// reduction makes a rule from the formula of the gradient.
func reduction(f func(*Context, reduced) *onnx.Value) func(*Context) {
	return func(c *Context) {
		axes, ok := reducedAxes(c)
		if !ok {
			c.Fail("the axes are unknown before the run")
			return
		}
		if c.e.b.Err() != nil {
			return
		}
		if len(axes) == 0 {
			c.Add(0, f(c, reduced{c.Loose(0), c.Out(0), nil}))
			return
		}
		r := reduced{g: c.Loose(0), y: c.Out(0), axes: axes}
		if c.Node.Int("keepdims", 1) != 1 && len(axes) < c.Rank(c.In(0)) {
			r.y = c.Unsqueeze(r.y, axes...)
			if len(r.g.Type.Shape) > 0 {
				r.g = c.Unsqueeze(c.Grad(0), axes...)
			}
		}
		c.Add(0, f(c, r))
	}
}

// reducedAxes lists the axes, counted from the front. They are an attribute up
// to some opset (13 for ReduceSum, 18 for the others) and an input after.
func reducedAxes(c *Context) ([]int, bool) {
	x := c.In(0)
	list := c.Node.Ints("axes")
	if v := c.In(1); v != nil {
		var ok bool
		if list, ok = c.Ints(v); !ok {
			return nil, false
		}
	}
	rank := c.Rank(x)
	if len(list) == 0 {
		if c.Node.Int("noop_with_empty_axes", 0) == 1 {
			return nil, true
		}
		return c.axesFrom(x, 0), true
	}
	hit := make([]bool, rank)
	for _, a := range list {
		if k := c.axis(a, x); k < rank {
			hit[k] = true
		}
	}
	var axes []int
	for i, h := range hit {
		if h {
			axes = append(axes, i)
		}
	}
	return axes, true
}
