package loss

// Decoders that were exported to generate read keys and values of the tokens before:
//
//	past_key_values.0.key [batch, heads, past_sequence_length, width]
//
// A training step has all its tokens at once, so there are none. In a model that returns
// such a cache, an input of floats one of whose extents is called so, or that is itself,
// becomes an empty tensor, and where that is one of the parts of a Concat, nothing. ONNX
// Runtime's own attention operators do without. (A model of time series returns no cache;
// its past_values are its data. So are an encoder's keys and values, which a decoder that
// goes on from a past reads as they are: to none of them does it add those of its tokens.)

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

// isCache reports an output that is the past of the step after.
func isCache(v *onnx.Value) bool {
	return strings.HasPrefix(v.Name, "present") || strings.HasPrefix(v.Name, "past_key")
}

// pastOf is the symbol of the extent of an input that counts the tokens before, "" where v
// has none: one that is called so, or, where the input is, the only one that no other
// input has.
func pastOf(g *onnx.Graph, v *onnx.Value) string {
	if v.Init != nil || !v.Type.DType.IsFloat() || !grows(v) && !measured(v) {
		return ""
	}
	var own []string
	for _, d := range v.Type.Shape {
		s := d.Symbols()
		if len(s) != 1 || d != onnx.Symbol(s[0]) {
			continue
		}
		if speaksOfPast(s[0]) {
			return s[0]
		}
		if x, _ := sized(g, d, isPast); x == nil {
			own = append(own, s[0])
		}
	}
	if isPast(v) && len(own) == 1 {
		return own[0]
	}
	return ""
}

// grows reports a value, perhaps arranged, to which keys or values of a step's tokens are
// added: by a Concat, or by an operator of attention, whose operands from the fourth on
// hold the past.
func grows(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		switch n := u.Node; {
		case u.Index == onnx.Captured:
			for inner := range n.Inside() {
				if inner.Is("Concat") && slices.Contains(inner.Proto.GetInput(), v.Name) {
					return true
				}
			}
			return false
		case n.Is("Concat"), u.Index >= 3 && strings.HasSuffix(n.OpType(), "Attention"):
			return true
		case u.Index == 0 && (traits.Moves(n) || n.Is("Cast", "DequantizeLinear")):
			return slices.ContainsFunc(n.Outputs, func(w *onnx.Value) bool { return w != nil && grows(w) })
		}
		return false
	})
}

// measured reports a value of which nothing but the shape is read.
func measured(v *onnx.Value) bool {
	return !v.IsOutput() && !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index == onnx.Captured || !traits.ReadsShape(u.Node) })
}

func speaksOfPast(name string) bool { return strings.Contains(strings.ToLower(name), "past") }

// isPast reports an input that is called past keys or values.
func isPast(v *onnx.Value) bool { return v.Type.DType.IsFloat() && speaksOfPast(v.Name) }

// emptyPast empties the inputs of the past, notes them, and returns the types of what
// is left. Caches are the outputs that hold the past of the step after.
func emptyPast(m *onnx.Model, types *infer.Result, dims map[string]int64, caches []*onnx.Value, prediction *onnx.Value, res *Result) (*infer.Result, error) {
	g := m.Graph
	none := map[string]int64{}
	var past []*onnx.Value
	for _, v := range g.Inputs {
		if s := pastOf(g, v); s != "" {
			past, none[s] = append(past, v), 0
		}
	}
	if len(past) == 0 {
		return types, nil
	}
	all := totals(g, caches, past)
	for _, v := range g.Inputs {
		v.Type.Shape = slices.Clone(v.Type.Shape)
		for i, d := range v.Type.Shape {
			v.Type.Shape[i] = d.Subst(none)
			if all[d] && len(prediction.Type.Shape) == 3 {
				v.Type.Shape[i] = prediction.Type.Shape[1]
			}
		}
	}
	b := build.New(g, types, Pass)
	for _, v := range past {
		for _, u := range slices.Clone(v.Uses()) {
			if optional(u) {
				u.Node.SetInput(u.Index, nil)
				u.Node.RemoveAttr("sliding_window_cache") // how the past would lie
			}
		}
		if !v.Dead() {
			e, err := empty(g, b, v, past)
			if err != nil {
				return nil, err
			}
			g.ReplaceUses(v, e)
		}
		res.Empty = append(res.Empty, v.Name)
		g.RemoveInput(v)
	}
	g.Nodes = append(b.Take(), g.Nodes...)
	for _, n := range g.Nodes { // what was told with a past of some length
		for _, v := range n.Returns() {
			if slices.ContainsFunc(v.Type.Shape, func(d onnx.Dim) bool { return d.Subst(none) != d }) {
				v.Type = onnx.Type{DType: v.Type.DType}
			}
		}
	}
	types, err := infer.Model(m, infer.Options{Dims: dims})
	if err != nil {
		return nil, err
	}
	for _, n := range g.Nodes {
		dropEmpty(g, n)
	}
	g.RemoveDead()
	return types, nil
}

// totals are the extents that count the tokens before and those of the step: in a cache
// that is returned with the step's in it, and in no past that is read. Without a past they
// are those of the step.
func totals(g *onnx.Graph, caches, past []*onnx.Value) map[onnx.Dim]bool {
	for _, v := range g.Inputs {
		if isPast(v) && !slices.Contains(past, v) { // an encoder's
			past = append(slices.Clip(past), v)
		}
	}
	all := map[onnx.Dim]bool{}
	for _, v := range caches {
		if !grown(v) {
			continue
		}
		for _, d := range v.Type.Shape {
			read := slices.ContainsFunc(past, func(w *onnx.Value) bool { return slices.Contains(w.Type.Shape, d) })
			all[d] = all[d] || len(d.Symbols()) > 0 && !read
		}
	}
	return all
}

// grown reports a cache to which something was added; of a node with subgraphs it is not
// told.
func grown(v *onnx.Value) bool {
	for n := v.Producer; n != nil; n = v.Producer {
		switch {
		case n.Is("Concat"), strings.HasSuffix(n.OpType(), "Attention"), len(n.Subgraphs()) > 0:
			return true
		case !traits.Moves(n) && !n.Is("Cast", "QuantizeLinear"):
			return false
		}
		v = n.In(0)
	}
	return false
}

// optional reports an operand that an attention operator does without.
func optional(u onnx.Use) bool {
	switch n := u.Node; {
	case n.Domain() != "com.microsoft":
		return false
	case n.OpType() == "GroupQueryAttention":
		return u.Index == 3 || u.Index == 4
	default:
		return n.OpType() == "MultiHeadAttention" && (u.Index == 6 || u.Index == 7)
	}
}

// empty is v with nothing along its past; its other extents are numbers, or those of
// other inputs.
func empty(g *onnx.Graph, b *build.Builder, v *onnx.Value, past []*onnx.Value) (*onnx.Value, error) {
	var parts []*onnx.Value
	for i, d := range v.Type.Shape {
		n, ok := d.Int()
		if !ok {
			n, ok = joined(v, i)
		}
		if ok {
			parts = append(parts, b.Ints(n))
			continue
		}
		x, axis := sized(g, d, func(v *onnx.Value) bool { return slices.Contains(past, v) })
		if x == nil {
			return nil, fmt.Errorf("input %q holds the past, which is empty in training, and no other input has its extent %s: give --dim %[2]s=N", v.Name, d)
		}
		parts = append(parts, b.Op("Gather", build.In(b.Op("Shape", build.In(x)), b.Ints(int64(axis))), onnx.IntAttr("axis", 0)))
	}
	shape := b.Op("Concat", parts, onnx.IntAttr("axis", 0))
	return b.Op("ConstantOfShape", build.In(shape), onnx.TensorAttrOf("value", onnx.FloatTensor(v.Type.DType, []float64{0}, 1))), b.Err()
}

// joined is the extent of v along an axis that what v is concatenated with has.
func joined(v *onnx.Value, axis int) (int64, bool) {
	for _, u := range v.Uses() {
		if !u.Node.Is("Concat") {
			continue
		}
		for _, w := range u.Node.Inputs {
			if along, ok := onnx.Axis(u.Node.Int("axis", 0), len(w.Type.Shape)); ok && along != axis && axis < len(w.Type.Shape) && w.Type.Shape[axis].IsStatic() {
				return w.Type.Shape[axis].Int()
			}
		}
	}
	return 0, false
}

// sized finds an input that is not of the past with an extent d.
func sized(g *onnx.Graph, d onnx.Dim, past func(*onnx.Value) bool) (*onnx.Value, int) {
	for _, v := range g.Inputs {
		if past(v) {
			continue
		}
		if i := slices.Index(v.Type.Shape, d); i >= 0 {
			return v, i
		}
	}
	return nil, 0
}

// dropEmpty leaves out the parts of a Concat that hold nothing.
func dropEmpty(g *onnx.Graph, n *onnx.Node) {
	if !n.Is("Concat") || len(n.Inputs) < 2 {
		return
	}
	var parts []*onnx.Value
	for _, v := range n.Inputs {
		axis, ok := onnx.Axis(n.Int("axis", 0), len(v.Type.Shape))
		if !ok || !v.Type.Shape[axis].Is(0) {
			parts = append(parts, v)
		}
	}
	switch len(parts) {
	case len(n.Inputs), 0:
	case 1:
		if !n.Out(0).IsOutput() {
			g.ReplaceUses(n.Out(0), parts[0])
		}
	default:
		n.SetInputs(parts...)
	}
}
