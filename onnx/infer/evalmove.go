package infer

// Value rules of the operators that move or make elements.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

func evalConstant(c *ctx, o int) []elem {
	if o != 0 {
		return nil
	}
	if t := c.n.ConstantTensor(); t != nil {
		return tensorElems(t)
	}
	return nil
}

func evalConstantOfShape(c *ctx, o int) []elem {
	fill := floatElem(0)
	if t := c.n.TensorAttr("value"); t != nil {
		e := tensorElems(t)
		if len(e) != 1 {
			return nil
		}
		fill = e[0]
	}
	return slices.Repeat([]elem{fill}, count(c.outDims(o)))
}

func evalShape(c *ctx, o int) []elem {
	s, ok := c.shape(0)
	if !ok || o != 0 {
		return nil
	}
	from, to := shapeWindow(c.n, len(s))
	out := make([]elem, 0, len(s))
	for _, d := range s[from:to] {
		out = append(out, dimElem(d))
	}
	return out
}

func evalSize(c *ctx, o int) []elem {
	s, ok := c.shape(0)
	if !ok || o != 0 {
		return nil
	}
	return []elem{dimElem(s.Elements())}
}

func evalConcat(c *ctx, o int) []elem {
	axis, err := normAxis(c.n.Int("axis", 0), len(c.outDims(0)))
	if err != nil || o != 0 {
		return nil
	}
	// One input whose elements are unknown still leaves the others known.
	dims := c.outDims(0)
	out := make([]elem, count(dims))
	strides := onnx.Strides(dims)
	at := int64(0)
	for i := range c.n.Inputs {
		in, ok := c.in(i).Shape.Ints()
		if !ok || len(in) != len(dims) {
			return nil
		}
		if x, ok := c.operand(i); ok {
			k := 0
			for p := range onnx.Strided(in, strides, at*strides[axis]) {
				if p >= int64(len(out)) {
					return nil
				}
				out[p] = x.elems[k]
				k++
			}
		}
		at += in[axis]
	}
	return out
}

func evalGather(c *ctx, o int) []elem {
	x, ok1 := c.operand(0)
	index, ok2 := c.numbers(1)
	axis, err := normAxis(c.n.Int("axis", 0), len(x.dims))
	if !ok1 || !ok2 || err != nil || o != 0 {
		return nil
	}
	inner := count(x.dims[axis+1:])
	outer := count(x.dims[:axis])
	var out []elem
	for a := range outer {
		for _, k := range index {
			if k < 0 {
				k += x.dims[axis]
			}
			if k < 0 || k >= x.dims[axis] {
				return nil
			}
			from := (a*int(x.dims[axis]) + int(k)) * inner
			out = append(out, x.elems[from:from+inner]...)
		}
	}
	return out
}

// evalOneHot writes the second value where an index stands and the first elsewhere, also where the
// index is none of the axis.
func evalOneHot(c *ctx, o int) []elem {
	index, ok1 := c.numbers(0)
	values, ok2 := c.operand(2)
	dims := c.outDims(0)
	axis, err := normAxis(c.n.Int("axis", -1), len(dims))
	if !ok1 || !ok2 || err != nil || o != 0 || len(values.elems) != 2 {
		return nil
	}
	inner, depth := count(dims[axis+1:]), dims[axis]
	out := make([]elem, count(dims))
	for i := range out {
		at := int64(i/inner) % depth
		k := index[i/inner/int(depth)*inner+i%inner]
		out[i] = values.elems[0]
		if k == at || k+depth == at {
			out[i] = values.elems[1]
		}
	}
	return out
}

func evalTranspose(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok || o != 0 {
		return nil
	}
	perm, err := permOf(c.n, len(x.dims))
	if err != nil {
		return nil
	}
	from := onnx.Strides(x.dims)
	strides := make([]int64, len(perm))
	for i, p := range perm {
		strides[i] = from[p]
	}
	return pick(x.elems, onnx.Strided(c.outDims(0), strides, 0))
}

func evalExpand(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok || o != 0 || len(x.dims) > len(c.outDims(0)) {
		return nil
	}
	return pick(x.elems, slices.Values(spread(c.outDims(0), x.dims)))
}

func evalTile(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok || o != 0 {
		return nil
	}
	dims := c.outDims(0)
	from, strides := onnx.Strides(x.dims), onnx.Strides(dims)
	out := make([]elem, count(dims))
	for i := range out {
		place := int64(0)
		for k := range dims {
			place += int64(i) / strides[k] % dims[k] % x.dims[k] * from[k]
		}
		out[i] = x.elems[place]
	}
	return out
}

func evalSplit(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok {
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", 0), len(x.dims))
	if err != nil {
		return nil
	}
	start := int64(0)
	for i := range o {
		s := c.types[i].Shape
		if axis >= len(s) {
			return nil
		}
		n, ok := s[axis].Int()
		if !ok {
			return nil
		}
		start += n
	}
	dims := c.outDims(o)
	if len(dims) != len(x.dims) {
		return nil
	}
	strides := onnx.Strides(x.dims)
	return pick(x.elems, onnx.Strided(dims, strides, start*strides[axis]))
}

func evalSlice(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	if !ok || o != 0 {
		return nil
	}
	cuts, ok, err := c.cuts(len(x.dims))
	if !ok || err != nil {
		return nil
	}
	strides, base := onnx.Strides(x.dims), int64(0)
	for _, cut := range cuts {
		start, ok := cut.start.Int()
		if !ok {
			return nil
		}
		from, _ := onnx.SliceBounds(start, 0, cut.step, x.dims[cut.axis])
		base += from * strides[cut.axis]
		strides[cut.axis] *= cut.step
	}
	return pick(x.elems, onnx.Strided(c.outDims(0), strides, base))
}

func evalRange(c *ctx, o int) []elem {
	start, ok1 := c.element(0)
	delta, ok2 := c.element(2)
	if !ok1 || !ok2 || o != 0 {
		return nil
	}
	d := c.dtype(0)
	out := make([]elem, count(c.outDims(0)))
	for i := range out {
		step := mulRule.apply(d, intOrFloat(d, int64(i)), delta)
		out[i] = fit(d, addRule.apply(d, start, step))
	}
	return out
}

func intOrFloat(d onnx.DType, n int64) elem {
	if d.IsFloat() {
		return floatElem(float64(n))
	}
	return intElem(n)
}
