package infer

// Value rules: the elements of an output from the elements of the inputs. They
// run only where the output is small and its shape known, so they may copy.

import (
	"iter"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// operand is an input with known elements.
type operand struct {
	dims  []int64
	elems []elem
}

func (c *ctx) operand(i int) (operand, bool) {
	v := c.n.In(i)
	if !c.r.mayKnow(v) {
		return operand{}, false
	}
	elems, ok := c.r.elements(v)
	if !ok {
		return operand{}, false
	}
	dims, ok := v.Type.Shape.Ints()
	if n, ok2 := onnx.Elements(dims); !ok || !ok2 || int(n) != len(elems) {
		return operand{}, false
	}
	return operand{dims, elems}, true
}

// element is the element of an input that has one, as far as it is known.
func (c *ctx) element(i int) (elem, bool) {
	x, ok := c.operand(i)
	if !ok || len(x.elems) != 1 {
		return elem{}, false
	}
	return x.elems[0], true
}

// outDims are the extents of output i, which are known when a value rule runs.
func (c *ctx) outDims(i int) []int64 {
	dims, _ := c.n.Outputs[i].Type.Shape.Ints()
	return dims
}

func count(dims []int64) int {
	n := 1
	for _, d := range dims {
		n *= int(d)
	}
	return n
}

// spread maps each element of an output to the element of an input that
// broadcasts to it.
func spread(out, in []int64) []int64 {
	strides := make([]int64, len(out))
	own := onnx.Strides(in)
	for i := range in {
		if in[i] != 1 {
			strides[len(out)-len(in)+i] = own[i]
		}
	}
	return slices.Collect(onnx.Strided(out, strides, 0))
}

// pick takes the elements at these places, nil where one is outside.
func pick(elems []elem, places iter.Seq[int64]) []elem {
	out := []elem{}
	for k := range places {
		if k < 0 || k >= int64(len(elems)) {
			return nil
		}
		out = append(out, elems[k])
	}
	return out
}

// mapped evaluates an operator element by element over broadcast inputs.
func mapped(f func(c *ctx, d onnx.DType, in []elem) elem) func(*ctx, int) []elem {
	return func(c *ctx, o int) []elem {
		if o != 0 || len(c.n.Inputs) == 0 || len(c.n.Inputs) > 8 {
			return nil
		}
		dims := c.outDims(0)
		n := count(dims)
		args := make([][]elem, len(c.n.Inputs))
		places := make([][]int64, len(c.n.Inputs))
		for i := range c.n.Inputs {
			if c.n.In(i) != nil && !c.r.mayKnow(c.n.In(i)) {
				return nil
			}
		}
		for i := range c.n.Inputs {
			if c.n.In(i) == nil { // left out, as a bound of Clip may be
				args[i], places[i] = make([]elem, 1), spread(dims, nil)
				continue
			}
			x, ok := c.operand(i)
			if !ok || len(x.dims) > len(dims) {
				return nil
			}
			args[i], places[i] = x.elems, spread(dims, x.dims)
		}
		d := c.n.Outputs[0].Type.DType
		out := make([]elem, n)
		in := make([]elem, len(args))
		for k := range out {
			for i := range args {
				if places[i][k] >= int64(len(args[i])) {
					return nil
				}
				in[i] = args[i][places[i][k]]
			}
			out[k] = fit(d, f(c, d, in))
		}
		return out
	}
}

// evalSame passes the elements of input 0 on in their order.
func evalSame(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok || o != 0 {
		return nil
	}
	return x.elems
}

func binaryEval(r arithmetic) func(*ctx, int) []elem {
	return mapped(func(c *ctx, d onnx.DType, in []elem) elem {
		if len(in) != 2 {
			return elem{}
		}
		return r.apply(d, in[0], in[1])
	})
}

// foldEval is for operators of any number of inputs: Min, Max, Sum.
func foldEval(r arithmetic) func(*ctx, int) []elem {
	return mapped(func(c *ctx, d onnx.DType, in []elem) elem {
		v := in[0]
		for _, e := range in[1:] {
			v = r.apply(d, v, e)
		}
		return v
	})
}

// compareEval makes the rule of a comparison from what it yields for less,
// equal and greater.
func compareEval(onLess, onEqual, onGreater bool) func(*ctx, int) []elem {
	return mapped(func(c *ctx, _ onnx.DType, in []elem) elem {
		if len(in) != 2 || !in[0].known() || !in[1].known() {
			return elem{}
		}
		a, b := in[0], in[1]
		if a.float && b.float {
			switch {
			case a.f < b.f:
				return boolElem(onLess)
			case a.f == b.f:
				return boolElem(onEqual)
			case a.f > b.f:
				return boolElem(onGreater)
			}
			return boolElem(false) // NaN
		}
		x, ok1 := a.integral()
		y, ok2 := b.integral()
		if !ok1 || !ok2 {
			return elem{}
		}
		less, equal, greater := order(x, y)
		yes := less && onLess || equal && onEqual || greater && onGreater
		no := less && !onLess || equal && !onEqual || greater && !onGreater
		if yes && no {
			return elem{}
		}
		return boolElem(yes)
	})
}

// logicEval is for And, Or, Xor: -1 stands for an operand that is not known.
func logicEval(f func(a, b int) int) func(*ctx, int) []elem {
	return mapped(func(c *ctx, _ onnx.DType, in []elem) elem {
		if len(in) != 2 {
			return elem{}
		}
		if v := f(truth(in[0]), truth(in[1])); v >= 0 {
			return boolElem(v == 1)
		}
		return elem{}
	})
}

func evalNot(_ *ctx, _ onnx.DType, in []elem) elem {
	if t := truth(in[0]); t >= 0 {
		return boolElem(t == 0)
	}
	return elem{}
}

// unaryEval is for operators on one number; ints is nil where the operator
// takes floats only.
func unaryEval(ints func(onnx.Dim) onnx.Dim, floats func(float64) float64) func(*ctx, int) []elem {
	return mapped(func(c *ctx, d onnx.DType, in []elem) elem {
		e := in[0]
		if e.float {
			if d != onnx.Float32 && d != onnx.Float64 {
				return elem{}
			}
			return floatElem(floats(e.f))
		}
		if ints == nil {
			if n, ok := e.d.Int(); ok && d.IsFloat() {
				return floatElem(floats(float64(n)))
			}
			return elem{}
		}
		return dimElem(ints(e.d))
	})
}

// evalMod follows the divisor's sign, or the dividend's where fmod is set.
func evalMod(c *ctx, d onnx.DType, in []elem) elem {
	if len(in) != 2 || d.IsFloat() {
		return elem{}
	}
	a, ok1 := in[0].d.Int()
	b, ok2 := in[1].d.Int()
	if !ok1 || !ok2 {
		if in[1].d.Known() && in[0].d.Known() && !in[1].d.Is(0) && in[0].d.Div(in[1].d).Mul(in[1].d) == in[0].d {
			return intElem(0)
		}
		return elem{}
	}
	if b == 0 || b == -1 {
		return elem{}
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) && c.n.Int("fmod", 0) == 0 {
		m += b
	}
	return intElem(m)
}

func evalPow(_ *ctx, d onnx.DType, in []elem) elem {
	if len(in) != 2 {
		return elem{}
	}
	a, ok1 := in[0].number()
	b, ok2 := in[1].number()
	if !ok1 || !ok2 {
		return elem{}
	}
	p := math.Pow(a, b)
	if d.IsFloat() {
		if d != onnx.Float32 && d != onnx.Float64 {
			return elem{}
		}
		return floatElem(p)
	}
	if b < 0 || math.Abs(p) > 1<<52 {
		return elem{}
	}
	return intElem(int64(p))
}

func evalWhere(_ *ctx, _ onnx.DType, in []elem) elem {
	if len(in) != 3 {
		return elem{}
	}
	switch truth(in[0]) {
	case 1:
		return in[1]
	case 0:
		return in[2]
	}
	if in[1] == in[2] {
		return in[1]
	}
	return elem{}
}

// evalCast keeps whole numbers as polynomials on the way through a float type.
func evalCast(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok || o != 0 {
		return nil
	}
	to := c.n.Outputs[0].Type.DType
	out := make([]elem, len(x.elems))
	for i, e := range x.elems {
		out[i] = castElem(to, e)
	}
	return out
}

func castElem(to onnx.DType, e elem) elem {
	switch {
	case !e.known():
		return elem{}
	case to == onnx.Bool:
		if f, ok := e.number(); ok {
			return boolElem(f != 0)
		}
		if e.d.AtLeast(1) {
			return boolElem(true)
		}
		return elem{}
	case to.IsHalf():
		if d, ok := e.integral(); ok && (!d.IsStatic() || math.Abs(e.f) <= 256) {
			return dimElem(d)
		}
		return elem{}
	case to.IsFloat():
		if f, ok := e.number(); ok {
			return fit(to, floatElem(f))
		}
		return e
	case e.float:
		if math.IsNaN(e.f) || math.Abs(e.f) > 1<<62 {
			return elem{}
		}
		return fit(to, intElem(int64(e.f)))
	}
	return fit(to, e)
}

// evalClip knows bounds that are inputs; before opset 11 they are attributes.
func evalClip(c *ctx, d onnx.DType, in []elem) elem {
	if c.n.Has("min") || c.n.Has("max") {
		return elem{}
	}
	v := in[0]
	if c.n.In(1) != nil {
		v = maxRule.apply(d, v, in[1])
	}
	if c.n.In(2) != nil {
		v = minRule.apply(d, v, in[2])
	}
	return v
}
