package infer

// Value rules of the operators that sum up, scatter or look for elements.

import "github.com/onnx-remat/remat/onnx"

// What sums and products over no elements are.
var emptySum, emptyProduct int64 = 0, 1

// reduceEval folds along the reduced axes, starting from the first element.
// Over no elements the result is empty, unknown where that is nil.
func reduceEval(r arithmetic, empty *int64) func(*ctx, int) []elem {
	return func(c *ctx, o int) []elem {
		x, ok := c.operand(0)
		if !ok || o != 0 || c.dtype(0) == onnx.Bool {
			return nil
		}
		axes, err := c.reducedAxes(len(x.dims))
		if err != nil || axes == nil {
			return nil
		}
		keep := make([]int64, len(x.dims))
		for i, d := range x.dims {
			keep[i] = d
			if axes[i] {
				keep[i] = 1
			}
		}
		d := c.dtype(0)
		out := make([]elem, count(keep))
		seen := make([]bool, len(out))
		for i, p := range spread(x.dims, keep) {
			if !seen[p] {
				out[p], seen[p] = x.elems[i], true
				continue
			}
			out[p] = fit(d, r.apply(d, out[p], x.elems[i]))
		}
		for i := range out {
			if !seen[i] && empty != nil {
				out[i] = intOrFloat(d, *empty)
			}
		}
		return out
	}
}

func evalScatterND(c *ctx, o int) []elem {
	x, ok1 := c.operand(0)
	index, ok2 := c.numbers(1)
	u, ok3 := c.operand(2)
	if !ok1 || !ok2 || !ok3 || o != 0 || c.n.Str("reduction", "none") != "none" {
		return nil
	}
	is, ok := c.in(1).Shape.Ints()
	if !ok || len(is) == 0 || is[len(is)-1] > int64(len(x.dims)) {
		return nil
	}
	k := int(is[len(is)-1])
	block := count(x.dims[k:])
	strides := onnx.Strides(x.dims)
	out := append([]elem(nil), x.elems...)
	for row := range count(is[:len(is)-1]) {
		place := int64(0)
		for j := range k {
			at := index[row*k+j]
			if at < 0 {
				at += x.dims[j]
			}
			if at < 0 || at >= x.dims[j] {
				return nil
			}
			place += at * strides[j]
		}
		if (row+1)*block > len(u.elems) || int(place)+block > len(out) {
			return nil
		}
		copy(out[place:int(place)+block], u.elems[row*block:])
	}
	return out
}

func evalScatterElements(c *ctx, o int) []elem {
	x, ok1 := c.operand(0)
	index, ok2 := c.numbers(1)
	u, ok3 := c.operand(2)
	axis, err := normAxis(c.n.Int("axis", 0), len(x.dims))
	if !ok1 || !ok2 || !ok3 || err != nil || o != 0 || len(u.elems) != len(index) || c.n.Str("reduction", "none") != "none" {
		return nil
	}
	is, ok := c.in(1).Shape.Ints()
	if !ok || len(is) != len(x.dims) {
		return nil
	}
	strides, from := onnx.Strides(x.dims), onnx.Strides(is)
	out := append([]elem(nil), x.elems...)
	for i, at := range index {
		place := int64(0)
		for k, n := range is {
			p := int64(i) / from[k] % n
			if k == axis {
				if p = at; p < 0 {
					p += x.dims[k]
				}
			}
			if p < 0 || p >= x.dims[k] {
				return nil
			}
			place += p * strides[k]
		}
		out[place] = u.elems[i]
	}
	return out
}

func evalCumSum(c *ctx, o int) []elem {
	x, ok := c.operand(0)
	axis, ok2 := c.scalar(1).Int()
	if !ok || !ok2 || o != 0 || c.n.Int("exclusive", 0) != 0 || c.n.Int("reverse", 0) != 0 {
		return nil
	}
	a, err := normAxis(axis, len(x.dims))
	if err != nil {
		return nil
	}
	d, inner := c.dtype(0), int(onnx.Strides(x.dims)[a])
	out := append([]elem(nil), x.elems...)
	for i := range out {
		if i/inner%int(x.dims[a]) > 0 {
			out[i] = fit(d, addRule.apply(d, out[i-inner], out[i]))
		}
	}
	return out
}

// evalNonZero lists the places of a constant's elements that are not zero;
// older exporters make ranges so.
func evalNonZero(c *ctx, o int) []elem {
	places, ok := c.nonZero()
	if !ok || o != 0 {
		return nil
	}
	dims, _ := c.in(0).Shape.Ints()
	strides := onnx.Strides(dims)
	var out []elem
	for k := range dims {
		for _, p := range places {
			out = append(out, intElem(int64(p)/strides[k]%dims[k]))
		}
	}
	return out
}

// nonZero are the places of the elements of input 0 that are not zero.
func (c *ctx) nonZero() ([]int, bool) {
	values, ok := c.floats(0)
	var places []int
	for i, f := range values {
		if f != 0 { // NaN too
			places = append(places, i)
		}
	}
	return places, ok
}
