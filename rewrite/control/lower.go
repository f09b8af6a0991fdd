package control

// The lowered form of y = Wait(x, trigger…):
//
//	trigger ─▶ Size ─▶ Unsqueeze ─▶ Slice [0:0] ─┐ (no elements, so no axes)
//	x ──────────────────────────────▶ Unsqueeze ◀┘ ─▶ y
//
// y is a view of x, and what leads from the trigger to it holds eight bytes for a
// moment. All that is known about ONNX Runtime in it:
//
//   - No level computes the Size of a value ahead, so the slice is no constant, the
//     axes are none, and y is not x. (A Shape of known extents is folded.)
//   - The CPU has no kernel of Size for half types, and would cast float16 first, all
//     of it. There the trigger's elements are sliced away before: Flatten ─▶
//     Slice [0:0] ─▶ Cast int64 ─▶ Size.
//   - Size returns a number on the host, and what follows stays there, so with CUDA
//     nothing is copied from the device; but the host waits for it (stream.go).
//   - Two equal Sizes are merged, and so are the slices: each trigger has one.
//   - A Reshape and the one Reshape, Squeeze or Unsqueeze that reads it become one
//     Reshape where the extents are known, and what the second waited for is lost.
//     So where a Reshape makes x, two nodes read it: y waits for a first view of x,
//     which waits for the triggers. (Were x a trigger like any other, its Size would
//     ask for x before the view does, and no place in the file could let what makes
//     the triggers run in between.) No fusion starts at an Unsqueeze.
//   - While shapes are inferred, an Unsqueeze of a single known integer counts as a
//     list of one, whatever its axes, and a Range refuses it. So an integer without
//     extents passes a Reshape to no extents, unless its reader may be joined to that.
//   - CUDA's provider takes axes on the host, and for that reason runs an Unsqueeze of
//     constant extents on the device, whence they would have to come back. It leaves
//     to the host what joins them with the slice: so a constant list of integers is a
//     Concat.
//
// Each claim has a test in this package or in docs/passes.md.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// Lower lowers the edges among nodes, which stand in the order in which they are to
// run, and returns the order with the operators in the edges' places: those that
// several edges share stand at the first one.
func Lower(g *onnx.Graph, nodes []*onnx.Node) ([]*onnx.Node, error) {
	return NewLowering(g).Lower(nodes)
}

// A Lowering lowers a graph's edges stretch by stretch; later ones share what
// earlier ones made.
type Lowering struct {
	b     *build.Builder
	none  map[*onnx.Value]*onnx.Value // trigger -> no elements
	all   map[string]*onnx.Value      // triggers -> no elements
	views map[string]*onnx.Value      // x and triggers -> y
}

// NewLowering starts to lower edges of g.
func NewLowering(g *onnx.Graph) *Lowering {
	return &Lowering{b: build.New(g, nil, Pass), none: map[*onnx.Value]*onnx.Value{},
		all: map[string]*onnx.Value{}, views: map[string]*onnx.Value{}}
}

// Lower lowers the edges of the next stretch of the order.
func (l *Lowering) Lower(nodes []*onnx.Node) ([]*onnx.Node, error) {
	var out, gone []*onnx.Node
	for i, n := range nodes {
		if n.OpType() != wait || n.Domain() != domain {
			if out != nil {
				out = append(out, n)
			}
			continue
		}
		if out == nil { // most orders have no edge
			out = append(make([]*onnx.Node, 0, len(nodes)+len(nodes)/4), nodes[:i]...)
		}
		y := n.Outputs[0]
		v := l.view(n.Inputs[0], n.Inputs[1:], n)
		if l.b.Err() != nil {
			return nil, fmt.Errorf("control dependency on %q: %w", n.Inputs[0].Name, l.b.Err())
		}
		l.b.Graph.ReplaceUses(y, v)
		gone = append(gone, n)
		out = append(out, l.b.Take()...)
	}
	if out == nil {
		return nodes, nil
	}
	l.b.Graph.Remove(gone...)
	return out, nil
}

// view returns x, once all triggers are there.
func (l *Lowering) view(x *onnx.Value, triggers []*onnx.Value, edge *onnx.Node) *onnx.Value {
	key := names(append(build.In(x), triggers...))
	if v := l.views[key]; v != nil {
		return v
	}
	axes := l.join(triggers)
	l.b.Scope = x.Name
	op := "Unsqueeze"
	if extents(x) {
		op = "Concat"
	} else if counter(x) && !slices.ContainsFunc(edge.Outputs[0].Uses(), func(u onnx.Use) bool { return Joins(u.Node) }) {
		op = "Reshape" // to no extents
	}
	if Reshaped(x) && !slices.Contains(triggers, x) {
		axes = None(l.b, made(l.b, edge.Origin().Step, op, x.Type, x, axes))
	}
	v := made(l.b, edge.Origin().Step, op, x.Type, x, axes)
	l.views[key] = v
	return v
}

// extents reports a constant list of integers.
func extents(x *onnx.Value) bool {
	return x.IsConstant() && x.Type.DType == onnx.Int64 && x.Type.Ranked && len(x.Type.Shape) == 1
}

// counter reports a single integer, as extents and counts are computed of.
func counter(x *onnx.Value) bool {
	return x.Type.DType.IsInt() && x.Type.Ranked && len(x.Type.Shape) == 0
}

// join returns a tensor of no elements that waits for all triggers.
func (l *Lowering) join(triggers []*onnx.Value) *onnx.Value {
	if len(triggers) == 1 {
		return l.nothing(triggers[0])
	}
	key := names(triggers)
	if v := l.all[key]; v != nil {
		return v
	}
	var parts []*onnx.Value
	for _, t := range triggers {
		parts = append(parts, l.nothing(t))
	}
	l.b.Scope = triggers[0].Name
	v := made(l.b, stepAll, "Concat", empty, parts...)
	l.all[key] = v
	return v
}

// nothing returns a tensor of no elements that waits for the trigger.
func (l *Lowering) nothing(trigger *onnx.Value) *onnx.Value {
	if v := l.none[trigger]; v != nil {
		return v
	}
	l.b.Scope = trigger.Name
	v := None(l.b, trigger)
	l.none[trigger] = v
	return v
}

// empty is the type of a tensor of no elements.
var empty = onnx.TensorOf(onnx.Int64, onnx.StaticShape(0))

// None makes an int64 tensor of no elements that waits for the trigger.
func None(b *build.Builder, trigger *onnx.Value) *onnx.Value {
	zero := b.Ints(0)
	if !counted(trigger.Type.DType) {
		trigger = emptied(b, trigger, zero)
	}
	size := made(b, stepSize, "Size", onnx.TensorOf(onnx.Int64, onnx.StaticShape()), trigger)
	row := made(b, stepSize, "Unsqueeze", onnx.TensorOf(onnx.Int64, onnx.StaticShape(1)), size, zero)
	return made(b, stepNone, "Slice", empty, row, zero, zero, zero)
}

// sized returns the trigger of a tensor that None made, by the node that makes it; nil
// for another node or an output.
func sized(n *onnx.Node) *onnx.Value {
	chain := []string{"Slice", "Unsqueeze", "Size"}
	for i, op := range chain {
		if !Is(n) || !n.Is(op) || n.In(0) == nil || n.Out(0) == nil || n.Outputs[0].IsOutput() || i == 0 && n.Origin().Step != stepNone {
			return nil
		}
		if i < len(chain)-1 {
			n = n.Inputs[0].Producer
		}
	}
	t := n.Inputs[0]
	for _, op := range []string{"Cast", "Slice", "Flatten"} { // of a half type
		p := t.Producer
		if !Is(p) || p.Origin().Step != stepSize || !p.Is(op) || p.In(0) == nil {
			break
		}
		t = p.Inputs[0]
	}
	return t
}

// counted reports a type of which the CPU has a kernel of Size.
func counted(d onnx.DType) bool {
	return d == onnx.Float32 || d == onnx.Float64 || d.IsInt() || d == onnx.Bool || d == onnx.String
}

// emptied returns a tensor of no elements of a trigger whose Size the CPU cannot
// take, of a type whose Size it can. Flatten is a view of any rank that no fusion
// goes through.
func emptied(b *build.Builder, trigger, zero *onnx.Value) *onnx.Value {
	flat := onnx.TensorOf(trigger.Type.DType, append(onnx.StaticShape(1), make(onnx.Shape, 1)...))
	if trigger.Type.Ranked {
		flat.Shape[1] = trigger.Type.Shape.Elements()
	}
	v := made(b, stepSize, "Flatten", flat, trigger)
	none := onnx.Type{DType: flat.DType, Ranked: true, Shape: append(onnx.StaticShape(0), flat.Shape[1])}
	v = made(b, stepSize, "Slice", none, v, zero, zero, zero)
	none.DType = onnx.Int64
	return made(b, stepSize, "Cast", none, v)
}

// made makes a node of an edge, or of what erases shapes.
func made(b *build.Builder, step, op string, t onnx.Type, inputs ...*onnx.Value) *onnx.Value {
	var attrs []onnx.Attribute
	switch op {
	case "Concat", "Flatten":
		attrs = append(attrs, onnx.IntAttr("axis", 0))
	case "Cast":
		attrs = append(attrs, onnx.IntAttr("to", int64(onnx.Int64)))
	case "Shape": // the first none of the extents
		attrs = append(attrs, onnx.IntAttr("start", 0), onnx.IntAttr("end", 0))
	}
	v := b.Op(op, inputs, attrs...)
	if v != nil {
		v.Type = t
		v.Producer.SetOrigin(onnx.Origin{Pass: Pass, Of: b.Scope, Step: step})
	}
	return v
}

func names(values []*onnx.Value) string {
	var text strings.Builder
	for _, v := range values {
		text.WriteString(v.Name)
		text.WriteByte(0)
	}
	return text.String()
}

// Reshaped reports a value that a Reshape makes, or a chain of views that ONNX
// Runtime may join to one.
func Reshaped(x *onnx.Value) bool {
	for p := x.Producer; p != nil && Joins(p) && p.In(0) != nil; p = p.Inputs[0].Producer {
		if p.Is("Reshape") {
			return true
		}
	}
	return false
}

// Joins reports an operator that ONNX Runtime may join to a Reshape before it.
func Joins(n *onnx.Node) bool { return n.Is("Reshape", "Squeeze", "Unsqueeze", "Identity") }
