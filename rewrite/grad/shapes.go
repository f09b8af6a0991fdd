package grad

// Shapes as values. Extents are read off graph inputs, which keeps no activation
// alive; a shape of numbers is a constant.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A dimSource finds the graph input axis that holds a symbol: reading extents
// off inputs keeps no activation alive.
type dimSource struct {
	at    map[onnx.Dim]inputAxis
	order []onnx.Dim
}

type inputAxis struct {
	value *onnx.Value
	axis  int
}

func newDimSource(g *onnx.Graph) *dimSource {
	s := &dimSource{at: map[onnx.Dim]inputAxis{}}
	for _, in := range g.Inputs {
		for i, d := range in.Type.Shape {
			if _, seen := s.at[d]; !seen && d.Known() && !d.IsStatic() {
				s.at[d] = inputAxis{in, i}
				s.order = append(s.order, d)
			}
		}
	}
	return s
}

// dim returns an extent as a one-element int64 value, nil where it cannot be
// computed from graph inputs.
func (e *engine) dim(d onnx.Dim) *onnx.Value {
	if n, ok := d.Int(); ok {
		return e.b.Ints(n)
	}
	key := "dim " + d.String()
	if v := e.shapes[key]; v != nil {
		return v
	}
	v := e.makeDim(d)
	if v != nil {
		e.shapes[key] = v
	}
	return v
}

// makeDim reads the extent off an input, or computes it: as a multiple of one
// that an input has, as one that lies a fixed number beside it, or as a sum.
func (e *engine) makeDim(d onnx.Dim) *onnx.Value {
	if src, ok := e.dims.at[d]; ok {
		return e.b.Op("Shape", build.In(src.value), onnx.IntAttr("start", int64(src.axis)), onnx.IntAttr("end", int64(src.axis+1)))
	}
	for _, k := range e.dims.order {
		if q := d.Div(k); d.Known() && q.Mul(k) == d {
			if rest := e.dim(q); rest != nil {
				return e.b.Op("Mul", build.In(e.dim(k), rest))
			}
		}
		if n, ok := d.Sub(k).Int(); ok {
			return e.b.Op("Add", build.In(e.dim(k), e.b.Ints(n)))
		}
	}
	for _, name := range d.Symbols() {
		rest := d.Subst(map[string]int64{name: 0})
		if !rest.Known() || rest.Is(0) || rest == d {
			continue
		}
		a, b := e.dim(d.Sub(rest)), e.dim(rest)
		if a == nil || b == nil {
			return nil
		}
		return e.b.Op("Add", build.In(a, b))
	}
	return nil
}

// shapeOf returns the shape of v as an int64 value.
func (e *engine) shapeOf(v *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	if v.Type.Ranked {
		if s := e.shapeValue(v.Type.Shape); s != nil {
			return s
		}
	}
	key := "of " + v.Name
	if s := e.shapes[key]; s != nil {
		return s
	}
	s := e.b.Op("Shape", build.In(v))
	e.shapes[key] = s
	return s
}

// shapeValue returns a shape as an int64 value without reading the value that
// has it, nil where an extent is not to be had so.
func (e *engine) shapeValue(s onnx.Shape) *onnx.Value {
	if dims, ok := s.Ints(); ok {
		return e.b.Ints(dims...)
	}
	for _, d := range s {
		if !d.Known() || !d.IsStatic() && e.dim(d) == nil {
			return nil
		}
	}
	key := "shape " + s.String()
	if v := e.shapes[key]; v != nil {
		return v
	}
	var parts []*onnx.Value
	for i := 0; i < len(s); {
		var run []int64
		for ; i < len(s) && s[i].IsStatic(); i++ {
			n, _ := s[i].Int()
			run = append(run, n)
		}
		if len(run) > 0 {
			parts = append(parts, e.b.Ints(run...))
			continue
		}
		parts = append(parts, e.dim(s[i]))
		i++
	}
	v := parts[0]
	if len(parts) > 1 {
		v = e.b.Op("Concat", parts, onnx.IntAttr("axis", 0))
	}
	e.shapes[key] = v
	return v
}

// reshapeLike gives v the shape of like.
func (e *engine) reshapeLike(v, like *onnx.Value) *onnx.Value {
	if v == nil || like == nil {
		return nil
	}
	if !like.Type.Ranked {
		return e.b.Op("Reshape", build.In(v, e.shapeOf(like)))
	}
	return e.reshape(v, like.Type.Shape, like)
}

// reshape gives v the shape s: with a constant where at most one extent is no
// number. like, where given, is a value that has the shape.
func (e *engine) reshape(v *onnx.Value, s onnx.Shape, like *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	for p := v.Producer; p != nil && p.Is("Reshape") && e.own[p]; p = v.Producer {
		v = p.In(0) // one Reshape does for a chain of them
	}
	if v.Type.Ranked && v.Type.Shape.Equal(s) {
		return v
	}
	key := "reshape " + v.Name + " " + s.String()
	if r := e.shapes[key]; r != nil {
		return r
	}
	r := e.makeReshape(v, s, like)
	if r != nil && allKnown(s) {
		e.shapes[key] = r
	}
	return r
}

// reachable reports a shape that reshape can give without a value that has it.
func (e *engine) reachable(s onnx.Shape) bool {
	_, ok := build.ReshapeTarget(s)
	return ok || e.shapeValue(s) != nil
}

func allKnown(s onnx.Shape) bool {
	return !slices.ContainsFunc(s, func(d onnx.Dim) bool { return !d.Known() })
}

func (e *engine) makeReshape(v *onnx.Value, s onnx.Shape, like *onnx.Value) *onnx.Value {
	if target, ok := build.ReshapeTarget(s); ok {
		return e.b.Op("Reshape", build.In(v, e.b.Ints(target...)))
	}
	shape := e.shapeValue(s)
	if shape == nil && like != nil {
		shape = e.shapeOf(like)
	}
	if shape == nil {
		e.b.Fail(e.unknownShape(s))
		return nil
	}
	return e.b.Op("Reshape", build.In(v, shape), onnx.IntAttr("allowzero", 1))
}

// isLoose reports that g only broadcasts to v's shape.
func isLoose(g, v *onnx.Value) bool {
	a, b := g.Type, v.Type
	if !a.Ranked || !b.Ranked {
		return false
	}
	if len(a.Shape) != len(b.Shape) {
		return true
	}
	for i := range a.Shape {
		if a.Shape[i].Is(1) && !b.Shape[i].Is(1) {
			return true
		}
	}
	return false
}

// expandTo stretches g to v's shape where it is loose.
func (e *engine) expandTo(g, v *onnx.Value) *onnx.Value {
	if g == nil || v == nil || !isLoose(g, v) {
		return g
	}
	if v.Type.Empty() { // ONNX Runtime's Expand leaves a 1 where a 0 is asked for
		return e.zeros(v)
	}
	if x, ok := g.Number(); ok {
		return e.filledLike(v, g.Type.DType, x)
	}
	if n, ok := g.Type.Shape.Elements().Int(); ok && n == 1 && len(g.Type.Shape) > len(v.Type.Shape) {
		g = e.reshape(g, onnx.Shape{}, nil)
	}
	if !isLoose(g, v) {
		return g
	}
	if n, ok := v.Type.Shape.Elements().Int(); ok && n == 1 {
		return e.reshapeLike(g, v)
	}
	return e.b.Op("Expand", build.In(g, e.shapeOf(v)))
}

// zeros makes zeros of v's shape and type.
func (e *engine) zeros(v *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	return e.filledLike(v, v.Type.DType, 0)
}

// filledLike makes a value of v's shape, all elements x.
func (e *engine) filledLike(v *onnx.Value, d onnx.DType, x float64) *onnx.Value {
	if dims, ok := v.Type.Shape.Ints(); ok && v.Type.Ranked {
		if n, fits := onnx.Elements(dims); fits && n <= smallConstant {
			return e.b.Const(onnx.FloatTensor(d, slices.Repeat([]float64{x}, int(n)), dims...))
		}
	}
	return e.constantOf(e.shapeOf(v), d, x)
}

// constantOf makes a value of the shape that an int64 value holds, all elements x.
func (e *engine) constantOf(shape *onnx.Value, d onnx.DType, x float64) *onnx.Value {
	return e.b.Op("ConstantOfShape", build.In(shape), onnx.TensorAttrOf("value", onnx.FloatTensor(d, []float64{x}, 1)))
}

// unknownShape says which sizes would settle a shape that no value has: those of inputs, as no
// command takes a size for what the data decides, such as how many elements a mask keeps. Where
// sizes are divided, those are what is not known.
func (e *engine) unknownShape(s onnx.Shape) error {
	var free, divided []string
	known := slices.Sorted(maps.Keys(e.m.Graph.InputSymbols()))
	for _, d := range s {
		for _, symbol := range d.Symbols() {
			for _, name := range known {
				switch {
				case symbol == name:
					free = append(free, name)
				case onnx.Divides(symbol, name):
					divided = append(divided, name)
				}
			}
		}
	}
	if len(divided) > 0 {
		free = divided
	}
	slices.Sort(free)
	free = slices.Compact(free)
	if len(free) == 0 {
		return fmt.Errorf("the shape %s is unknown before the run, as data decides it: export the model with fixed sizes there", s)
	}
	return fmt.Errorf("the shape %s is unknown before the run: fix sizes with --dim %s=N", s, strings.Join(free, "=N,"))
}

// smallConstant is how many elements may be left for ONNX Runtime to fold into
// a constant that the session then holds.
const smallConstant = 4096

// zerosAfter is zeros of v's shape and a type that are only made when the integers in
// after are there. ONNX Runtime would compute plain zeros ahead and keep them,
// and what is added to them could no longer be added in place.
func (e *engine) zerosAfter(v, after *onnx.Value, d onnx.DType) *onnx.Value {
	if n, ok := v.Type.Shape.Elements().Int(); v.Type.Ranked && ok && n <= smallConstant {
		return e.filledLike(v, d, 0)
	}
	// The expanded indices are large and short-lived: take what they came from.
	for p := after.Producer; p != nil && (p.Is("Expand", "Reshape", "Unsqueeze", "Flatten") || p.Is("Cast") && p.In(0).Type.DType.IsInt()); p = after.Producer {
		after = p.In(0)
	}
	one := e.b.Op("Slice", build.In(e.b.Op("Reshape", build.In(after, e.b.Ints(-1))), e.b.Ints(0), e.b.Ints(1)))
	if one == nil {
		return nil
	}
	zero := e.b.Op("Mul", build.In(one, e.b.Const(intTensor(one.Type.DType, 0))))
	like := e.b.Op("Cast", build.In(zero), onnx.IntAttr("to", int64(d)))
	return e.b.Op("Expand", build.In(like, e.shapeOf(v)))
}

// filled makes a value of that shape, all elements x.
func (e *engine) filled(s onnx.Shape, d onnx.DType, x float64) *onnx.Value {
	shape := e.shapeValue(s)
	if shape == nil {
		e.b.Fail(e.unknownShape(s))
		return nil
	}
	return e.constantOf(shape, d, x)
}

// count is the number of elements of v along axes, as a rank-0 value of element
// type d.
func (e *engine) count(v *onnx.Value, axes []int, d onnx.DType) *onnx.Value {
	if v == nil {
		return nil
	}
	n := onnx.Static(1)
	if v.Type.Ranked {
		for _, a := range axes {
			n = n.Mul(v.Type.Shape[a])
		}
		if k, ok := n.Int(); ok {
			return e.b.Scalar(d, float64(k))
		}
	}
	key := fmt.Sprintf("count %s of %s %v", d, v.Name, axes)
	if v.Type.Ranked && n.Known() {
		key = fmt.Sprintf("count %s %s", d, n)
	}
	if c := e.shapes[key]; c != nil {
		return c
	}
	picked := e.b.Op("Gather", build.In(e.shapeOf(v), e.b.Axes(axes...)), onnx.IntAttr("axis", 0))
	prod := e.b.Op("ReduceProd", build.In(picked, e.b.Ints(0)), onnx.IntAttr("keepdims", 0))
	c := e.b.Op("Cast", build.In(prod), onnx.IntAttr("to", int64(d)))
	e.shapes[key] = c
	return c
}

func (e *engine) sum(v *onnx.Value, keep bool, axes ...int) *onnx.Value {
	if len(axes) == 0 || v == nil {
		return v
	}
	return e.b.Op("ReduceSum", build.In(v, e.b.Axes(axes...)), onnx.IntAttr("keepdims", flag(keep)))
}
