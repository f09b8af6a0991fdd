package rewrite

// A barrier returns its input unchanged, costs no memory and no time, and waits
// for another value:
//
//	trigger ─▶ Reshape [-1] ─▶ Slice [0:0] ─▶ Cast int64 ─┐ (no elements)
//	                            shape of x ───────────────┴▶ Concat ─▶ shape
//	x ─────────────────────────────────────────────────────────────▶ Reshape ─▶ x'
//
// The first Reshape and the last are views, the slice is empty, so nothing but
// a few bytes of shape is allocated. No optimization of ONNX Runtime sees
// through it: the empty slice of a computed value is not constant, so the
// shape is not, so x' is not x, and common-subexpression elimination keeps a
// recomputed node apart from its original. The dependency is a true one and
// holds in every runtime. A view of a view, though, may be fused to one that
// waits for nothing, so a barrier on a barrier's output becomes one that waits
// for both. It does not read the trigger's elements, so a NaN or
// an infinity there does no harm.
//
// Weakness: where x's extents are not static, its Shape is taken at run time
// (one small node more), and x' has to be annotated, because shape inference
// stops at a computed shape.

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// Barriers makes barriers in one graph and shares their common parts.
type Barriers struct {
	b       *build.Builder
	empty   map[*onnx.Value]*onnx.Value            // trigger -> no elements
	targets map[[2]*onnx.Value]*onnx.Value         // value, trigger -> barred value
	shapes  map[string]map[*onnx.Value]*onnx.Value // static shape, trigger -> shape
}

// NewBarriers returns a maker of barriers for g.
func NewBarriers(g *onnx.Graph) *Barriers {
	return &Barriers{
		b:       build.New(g, nil, "barrier"),
		empty:   map[*onnx.Value]*onnx.Value{},
		targets: map[[2]*onnx.Value]*onnx.Value{},
		shapes:  map[string]map[*onnx.Value]*onnx.Value{},
	}
}

// Take returns the nodes made since the last call, for the caller to place.
func (m *Barriers) Take() []*onnx.Node { return m.b.Take() }

// Put returns x behind a barrier that waits for the trigger; its nodes wait for
// Take.
func (m *Barriers) Put(x, trigger *onnx.Value) (*onnx.Value, error) {
	key := [2]*onnx.Value{x, trigger}
	if v := m.targets[key]; v != nil {
		return v, nil
	}
	if x.Type.DType == onnx.Undefined {
		return nil, fmt.Errorf("barrier on %q: its type is unknown", x.Name)
	}
	if source, waits := barred(x); source != nil && x != trigger {
		// Two views in a row would be fused to one that waits for nothing.
		m.empty[waits] = waits
		both, err := m.All(waits, trigger)
		if err != nil {
			return nil, err
		}
		v, err := m.Put(source, both)
		m.targets[key] = v
		return v, err
	}
	m.b.Scope = x.Name
	shape := m.shape(x, trigger)
	v := m.b.Op("Reshape", build.In(x, shape))
	if m.b.Err() != nil {
		return nil, m.b.Err()
	}
	v.Type = x.Type
	m.targets[key] = v
	return v, nil
}

// unsqueezeOpset is the opset from which Unsqueeze takes its axes as an input.
const unsqueezeOpset = 13

// Wait returns x behind a barrier for node n, where one of the two may be a
// view. ONNX Runtime makes one of a Reshape and the Reshape, Squeeze or
// Unsqueeze that alone reads it, and what the second waited for is lost; but it
// starts at no Unsqueeze, and goes through no Flatten:
//
//	x ─▶ Unsqueeze (no axes, which the trigger leads to) ─▶ n
//	x = Reshape ─▶ Flatten ─▶ Reshape (as in Put) ─▶ n, which is no view
func (m *Barriers) Wait(n *onnx.Node, x, trigger *onnx.Value) (*onnx.Value, error) {
	var v *onnx.Value
	if reshaped(x) && !joins(n) { // though x has other readers now: they may go
		m.b.Scope = x.Name
		v = m.b.Op("Reshape", build.In(flatten(m.b, x), m.shape(x, trigger)))
	} else {
		none := m.nothing(trigger)
		m.b.Scope = x.Name
		v = m.b.Op("Unsqueeze", build.In(x, none))
	}
	if m.b.Err() != nil {
		return nil, m.b.Err()
	}
	v.Type = x.Type
	return v, nil
}

// flatten keeps a Reshape that follows apart from the one that makes x.
func flatten(b *build.Builder, x *onnx.Value) *onnx.Value {
	v := b.Op("Flatten", build.In(x), onnx.IntAttr("axis", 0))
	if v == nil {
		return nil
	}
	v.Type = onnx.TensorOf(x.Type.DType, append(onnx.StaticShape(1), make(onnx.Shape, 1)...))
	if x.Type.Ranked {
		v.Type.Shape[1] = x.Type.Shape.Elements()
	}
	return v
}

// joins reports an operator that ONNX Runtime may join to a Reshape before it.
func joins(n *onnx.Node) bool { return n.Is("Reshape", "Squeeze", "Unsqueeze", "Identity") }

// alone reports a value that has at most one reader.
func alone(x *onnx.Value) bool { return len(x.Uses()) < 2 && !x.IsOutput() }

// reshaped reports a value that such a chain makes.
func reshaped(x *onnx.Value) bool {
	for p := x.Producer; p != nil && joins(p); p = p.Inputs[0].Producer {
		if p.Is("Reshape") {
			return true
		}
	}
	return false
}

// barred returns what a barrier's output is a view of, and the tensor of no
// elements that says for what it waits; nil for other values.
func barred(x *onnx.Value) (source, waits *onnx.Value) {
	p := x.Producer
	if p == nil || !p.Is("Reshape") || !isBarrier(p) {
		return nil, nil
	}
	if q := p.Inputs[0].Producer; q != nil && q.Is("Flatten") && isBarrier(q) {
		return nil, nil
	}
	if c := p.Inputs[1].Producer; c != nil && c.Is("Concat") && len(c.Inputs) >= 2 {
		return p.Inputs[0], c.Inputs[1]
	}
	return nil, nil
}

// emptied returns the nodes that make a tensor of no elements of a trigger for
// some barrier (see Barriers.nothing), nil where none does.
func emptied(trigger *onnx.Value) []*onnx.Node {
	ours := func(n *onnx.Node, op string) bool { return n.Is(op) && strings.HasPrefix(n.Name(), barrierPrefix) }
	for _, u := range trigger.Uses() {
		flat := u.Node
		if !ours(flat, "Reshape") || u.Index != 0 || !flat.Inputs[1].IsConstant() || len(flat.Outputs[0].Uses()) != 1 {
			continue
		}
		none := flat.Outputs[0].Uses()[0].Node
		if !ours(none, "Slice") {
			continue
		}
		if trigger.Type.DType == onnx.Int64 {
			return []*onnx.Node{flat, none}
		}
		for _, w := range none.Outputs[0].Uses() {
			if ours(w.Node, "Cast") {
				return []*onnx.Node{flat, none, w.Node}
			}
		}
	}
	return nil
}

// All returns a trigger that waits for all of the values: a tensor of no
// elements.
func (m *Barriers) All(values ...*onnx.Value) (*onnx.Value, error) {
	var parts []*onnx.Value
	for _, v := range values {
		m.b.Scope = v.Name
		parts = append(parts, m.nothing(v))
	}
	if len(parts) == 1 {
		return parts[0], m.b.Err()
	}
	all := m.b.Op("Concat", parts, onnx.IntAttr("axis", 0))
	if m.b.Err() != nil {
		return nil, m.b.Err()
	}
	all.Type = onnx.TensorOf(onnx.Int64, onnx.StaticShape(0))
	m.empty[all] = all
	return all, nil
}

// shape returns x's extents as a tensor that depends on the trigger.
func (m *Barriers) shape(x, trigger *onnx.Value) *onnx.Value {
	length := unknownLength
	if x.Type.Ranked {
		length = onnx.TensorOf(onnx.Int64, onnx.StaticShape(int64(len(x.Type.Shape))))
	}
	dims, static := x.Type.Shape.Ints()
	static = static && x.Type.Ranked
	key := fmt.Sprint(dims)
	var known *onnx.Value
	if static {
		if v := m.shapes[key][trigger]; v != nil {
			return v
		}
		known = m.b.Ints(dims...)
	} else {
		known = m.b.Op("Shape", build.In(x))
		known.Type = length
	}
	v := m.b.Op("Concat", build.In(known, m.nothing(trigger)), onnx.IntAttr("axis", 0))
	v.Type = length
	if static {
		if m.shapes[key] == nil {
			m.shapes[key] = map[*onnx.Value]*onnx.Value{}
		}
		m.shapes[key][trigger] = v
	}
	return v
}

// nothing returns an int64 tensor of no elements that depends on the trigger.
func (m *Barriers) nothing(trigger *onnx.Value) *onnx.Value {
	if v := m.empty[trigger]; v != nil {
		return v
	}
	zero := m.b.Ints(0)
	from := trigger
	if reshaped(trigger) {
		from = flatten(m.b, trigger)
	}
	flat := m.b.Op("Reshape", build.In(from, m.b.Ints(-1)))
	flat.Type = onnx.TensorOf(trigger.Type.DType, make(onnx.Shape, 1))
	if trigger.Type.Ranked {
		flat.Type.Shape[0] = trigger.Type.Shape.Elements()
	}
	none := m.b.Op("Slice", build.In(flat, zero, zero, zero))
	none.Type = onnx.TensorOf(trigger.Type.DType, onnx.StaticShape(0))
	v := none
	if trigger.Type.DType != onnx.Int64 {
		v = m.b.Op("Cast", build.In(none), onnx.IntAttr("to", int64(onnx.Int64)))
		v.Type = onnx.TensorOf(onnx.Int64, onnx.StaticShape(0))
	}
	m.empty[trigger] = v
	return v
}
