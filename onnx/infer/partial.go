package infer

// Elements of small tensors. An element is a dimension polynomial where it is
// an integer or a bool (0 or 1), or a number where it is a float; a float that
// came from an integer extent stays that polynomial, so that exporters'
// detours through Cast keep it exact.

import "github.com/onnx-remat/remat/onnx"

// What is followed, and how much work may go into it: so many elements of one
// tensor; of all tensors so many and so many more per node, a polynomial
// counted as several numbers. No file makes inference hold or do more. Tensors
// as small as shapes have a budget of their own, so that tables do not use it up.
const (
	maxElems      = 1024
	shapeElems    = 32
	budgetBase    = 1 << 18
	budgetPerNode = 16
	symbolCost    = 3
)

// An elem is one element: an integer polynomial, a float, or unknown (zero).
type elem struct {
	d     onnx.Dim
	f     float64
	float bool // f counts
}

func (e elem) known() bool { return e.float || e.d.Known() }

// A partial is the elements of a value of static shape, row by row.
type partial struct {
	elems []elem
	// tensor caches Const.
	tensor *onnx.Tensor
}

// Ints returns the elements of a small integer or bool tensor as far as known:
// of constants, and of what is computed from constants and shapes. ok is false
// where not even one is known or their number is not.
func (r *Result) Ints(v *onnx.Value) ([]onnx.Dim, bool) {
	if v == nil || !v.Type.DType.IsInt() && v.Type.DType != onnx.Bool {
		return nil, false
	}
	elems, ok := r.elements(v)
	if !ok {
		return nil, false
	}
	dims := make([]onnx.Dim, len(elems))
	for i, e := range elems {
		dims[i] = e.d
	}
	return dims, true
}

// Int64s returns the elements of a small integer or bool tensor where all of them
// are known numbers.
func (r *Result) Int64s(v *onnx.Value) ([]int64, bool) {
	dims, ok := r.Ints(v)
	if !ok {
		return nil, false
	}
	return onnx.Shape(dims).Ints()
}

// Const returns the value as a tensor where all of it is known whatever the
// feeds: an initializer that no input overrides, the output of a Constant, or
// what small ones of these compute. The tensor must not be changed.
func (r *Result) Const(v *onnx.Value) (*onnx.Tensor, bool) {
	if t := v.Constant(); t != nil {
		return t, true
	}
	p := r.partials[v]
	if p == nil {
		return nil, false
	}
	if p.tensor == nil {
		p.tensor = makeTensor(v.Type, p.elems)
	}
	return p.tensor, p.tensor != nil
}

// elements returns what is known of a value's elements.
func (r *Result) elements(v *onnx.Value) ([]elem, bool) {
	if v == nil {
		return nil, false
	}
	n, ok := smallSize(v.Type)
	if p := r.partials[v]; p != nil && ok && len(p.elems) == n {
		return p.elems, true
	}
	if !v.IsConstant() {
		return nil, ok && n == 0 // nothing to know
	}
	elems := tensorElems(v.Init)
	if elems == nil {
		return nil, false
	}
	if n <= *r.budget(n) { // else it is read again where it is asked for again
		r.keep(v, elems)
	}
	return elems, true
}

// mayKnow reports cheaply that elements could be known.
func (r *Result) mayKnow(v *onnx.Value) bool {
	return v != nil && (r.partials[v] != nil || v.IsConstant())
}

// keep records elements where at least one is known, and pays for them.
func (r *Result) keep(v *onnx.Value, elems []elem) {
	known, budget := len(elems) == 0, r.budget(len(elems))
	for _, e := range elems {
		*budget--
		if e.known() {
			known = true
		}
		if e.d.Known() && !e.d.IsStatic() {
			*budget -= symbolCost
		}
	}
	if known && *budget >= 0 {
		r.partials[v] = &partial{elems: elems}
	}
}

// budget is what tensors of so many elements are paid from.
func (r *Result) budget(n int) *int {
	if n <= shapeElems {
		return &r.shapes
	}
	return &r.tables
}

// record runs the value rule of a node whose outputs are typed.
func (r *Result) record(c *ctx, row *row) {
	for i, v := range c.n.Returns() {
		n, ok := smallSize(v.Type)
		if !ok || n > *r.budget(n) {
			continue
		}
		if elems := row.eval(c, i); len(elems) == n {
			r.keep(v, elems)
		}
	}
}

// smallSize is the number of elements of a type that is small enough to follow.
func smallSize(t onnx.Type) (int, bool) {
	if !t.DType.IsInt() && !t.DType.IsFloat() && t.DType != onnx.Bool || !t.Ranked {
		return 0, false
	}
	dims, ok := t.Shape.Ints()
	if !ok {
		return 0, false
	}
	n, ok := onnx.Elements(dims)
	return int(n), ok && n <= maxElems
}

// tensorElems reads a small constant; nil where it is large or damaged.
func tensorElems(t *onnx.Tensor) []elem {
	n, ok := smallSize(t.Type())
	if !ok {
		return nil
	}
	elems := make([]elem, n)
	if t.DType().IsFloat() {
		values, err := t.Float64s()
		if err != nil || len(values) != n {
			return nil
		}
		for i, f := range values {
			elems[i] = floatElem(f)
		}
		return elems
	}
	values, err := t.Int64s()
	if err != nil || len(values) != n {
		return nil
	}
	for i, k := range values {
		elems[i] = intElem(k)
	}
	return elems
}

func intElem(n int64) elem     { return elem{d: onnx.Static(n)} }
func dimElem(d onnx.Dim) elem  { return elem{d: d} }
func floatElem(f float64) elem { return elem{f: f, float: true} }

func boolElem(b bool) elem {
	if b {
		return intElem(1)
	}
	return intElem(0)
}

// makeTensor writes fully known elements as a tensor, else nil.
func makeTensor(t onnx.Type, elems []elem) *onnx.Tensor {
	dims, ok := t.Shape.Ints()
	if !ok {
		return nil
	}
	if t.DType.IsFloat() {
		values := make([]float64, len(elems))
		for i, e := range elems {
			f, ok := e.number()
			if !ok {
				return nil
			}
			values[i] = f
		}
		return onnx.FloatTensor(t.DType, values, dims...)
	}
	size := int(t.DType.Size())
	data := make([]byte, size*len(elems))
	for i, e := range elems {
		n, ok := e.d.Int()
		if !ok {
			return nil
		}
		t.DType.PutInt(data[i*size:], n)
	}
	return onnx.NewTensor(t.DType, dims, data)
}

// number is the element as a number.
func (e elem) number() (float64, bool) {
	if e.float {
		return e.f, true
	}
	n, ok := e.d.Int()
	return float64(n), ok
}

// fit drops an integer that its type cannot hold, and rounds a float to its
// type. Halves are only passed on: rounding them is the kernels' business.
func fit(d onnx.DType, e elem) elem {
	if d.IsFloat() {
		if e.float && d == onnx.Float32 {
			e.f = float64(float32(e.f))
		}
		return e
	}
	n, ok := e.d.Int()
	if !ok {
		return elem{d: e.d}
	}
	least, most := d.IntRange()
	if n < least || n > most {
		return elem{}
	}
	return e
}
