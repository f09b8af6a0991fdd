package predict

// What ONNX Runtime knows of shapes when it plans. It reuses a buffer only
// where it knows the shape, and it infers less than package infer does: shapes
// are followed through few operators, so a Reshape that the rest of a chain
// decides is unknown to it unless the file declares the value's type.

import (
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

// following decides whether ONNX Runtime follows the elements of the shape
// tensor that a node makes. Found with small models: it does through Shape, a
// Gather of one element, and arithmetic and concatenation of such; an
// initializer among the operands ends it, as does everything else (1.31.1).
type following map[*onnx.Node]bool

// node notes whether the elements that n makes are followed. A Constant's are, but
// not beyond.
func (f following) node(n *onnx.Node) bool {
	ok := f.judge(n)
	f[n] = ok && !n.Is("Constant")
	return ok
}

// judge is the rule by operator.
func (f following) judge(n *onnx.Node) bool {
	if n.Domain() != "" {
		return false
	}
	switch n.OpType() {
	case "Constant", "Shape":
		return true
	case "Gather":
		return f.value(n.In(0)) && oneElement(n.In(1))
	case "Cast":
		return f.value(n.In(0)) && len(n.In(0).Type.Shape) > 0
	case "Squeeze", "Unsqueeze":
		return f.value(n.In(0))
	case "Concat", "Add", "Sub", "Mul", "Div":
		return !slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return !f.value(v) })
	}
	return false
}

func (f following) value(v *onnx.Value) bool {
	return v != nil && v.Producer != nil && f[v.Producer]
}

func oneElement(v *onnx.Value) bool {
	if v == nil || !v.Type.Ranked {
		return false
	}
	n, ok := v.Type.Shape.Elements().Int()
	return ok && n == 1
}

// knownTypes infers once more, as weakly as ONNX Runtime does, and returns the
// types that it has then. Inputs and outputs have the types told, if any. The
// model's own types are left as they are.
func knownTypes(m *onnx.Model, original original, told map[string]onnx.Type) map[*onnx.Value]onnx.Type {
	declared := declaredTypes(m)
	var dumped map[string]onnx.Type
	if original.values != nil {
		dumped = maps.Clone(declared)
	}
	for name, t := range original.declared {
		if _, ok := declared[name]; !ok {
			declared[name] = t
		}
	}
	saved := map[*onnx.Value]onnx.Type{}
	for _, v := range m.Graph.Inputs {
		saved[v] = v.Type
		if t, ok := told[v.Name]; ok {
			v.Type = t
		}
	}
	for _, n := range m.Graph.Nodes {
		for _, v := range n.Returns() {
			saved[v] = v.Type
			if t, ok := told[v.Name]; ok {
				v.Type = t
			} else if !v.IsOutput() {
				v.Type = declared[v.Name]
			}
		}
	}
	err := inferWeakly(m, saved, declared, dumped, original)
	if err == nil {
		forgetComputed(m, declared)
	}
	known := map[*onnx.Value]onnx.Type{}
	for v, t := range saved {
		if err == nil {
			known[v] = v.Type
		} else {
			known[v] = t
		}
		v.Type = t
	}
	return known
}

// shaped are the operators whose extents follow from numbers that they read, or, of Einsum, from letters.
var shaped = []string{"Expand", "Reshape", "Tile", "Resize", "Pad", "Slice", "Einsum", "ConstantOfShape"}

// forgetComputed makes extents unknown that were computed from free ones, like
// batch*seq: ONNX Runtime does not reckon with names, and knows them only where
// the file declares them, and where a node passes on what it reads.
func forgetComputed(m *onnx.Model, declared map[string]onnx.Type) {
	names := map[onnx.Dim]bool{}
	for _, v := range m.Graph.Inputs {
		for _, d := range v.Type.Shape {
			names[d] = true
		}
	}
	for _, n := range m.Graph.Nodes {
		reads := func(d onnx.Dim) bool {
			return !n.Is(shaped...) && slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && slices.Contains(v.Type.Shape, d) })
		}
		for _, v := range n.Returns() {
			if v.Type.IsStatic() || !v.Type.Ranked {
				continue
			}
			said := declared[v.Name].Shape
			shape := slices.Clone(v.Type.Shape)
			for i, d := range shape {
				if d.IsStatic() || names[d] || d != (onnx.Dim{}) && reads(d) {
					continue
				}
				if shape[i] = (onnx.Dim{}); len(said) == len(shape) {
					shape[i] = said[i]
				}
			}
			v.Type.Shape = shape
		}
	}
}

// inferWeakly goes through the nodes as ONNX Runtime does.
func inferWeakly(m *onnx.Model, types map[*onnx.Value]onnx.Type, declared, dumped map[string]onnx.Type, original original) error {
	nodes := m.Graph.Nodes
	m.Graph.Nodes = nil
	follow := following{}
	r, err := infer.Model(m, infer.Options{Follow: follow.node})
	m.Graph.Nodes = nodes
	if err != nil {
		return err
	}
	for _, n := range step.CopiesFirst(m.Graph) {
		if err := r.Node(n); err != nil {
			return err
		}
		for _, v := range n.Returns() {
			keepNames(v, dumped[v.Name])
		}
		partsOfUnknown(n, declared)
		nothing := lost(n, follow)
		if wasCast(n) {
			var err error
			if nothing, err = inferAsCast(r, n, follow, original.inputs[n.Name()], declared); err != nil {
				return err
			}
		}
		for _, v := range n.Returns() {
			if v.Type.IsStatic() || original.values == nil || original.values[v.Name] {
				continue
			}
			if t, ok := turnedBack(v, types[v], m.Graph, original); ok {
				v.Type, declared[v.Name] = t, t
			}
		}
		if !nothing {
			continue
		}
		for _, v := range n.Outputs { // the rank is not even known
			if v == nil || v.IsOutput() {
				continue
			}
			rank, ranked := len(v.Type.Shape), v.Type.Ranked && n.Is("TopK", "Slice")
			v.Type = declared[v.Name]
			if v.Type.DType == onnx.Undefined {
				v.Type.DType = types[v].DType
			}
			if ranked && !v.Type.Ranked {
				v.Type = onnx.TensorOf(v.Type.DType, make(onnx.Shape, rank))
			}
		}
	}
	return nil
}

// keepNames leaves an extent its name where ONNX Runtime saved it with one, though a number follows from that
// of another: it was told that of one dimension, and did not follow it that far.
func keepNames(v *onnx.Value, saved onnx.Type) {
	if v.IsOutput() || !saved.Ranked || len(saved.Shape) != len(v.Type.Shape) {
		return
	}
	shape := slices.Clone(v.Type.Shape)
	for i, d := range saved.Shape {
		if shape[i].IsStatic() && d != (onnx.Dim{}) && !d.IsStatic() {
			shape[i] = d
		}
	}
	v.Type.Shape = shape
}

// partsOfUnknown leaves the extents of a Split's parts unknown along an axis whose extent is:
// ONNX Runtime takes the sizes only where it knows the whole, or what the file declares.
func partsOfUnknown(n *onnx.Node, declared map[string]onnx.Type) {
	whole := n.In(0)
	if n.Domain() != "" || !n.Is("Split") || whole == nil || !whole.Type.Ranked {
		return
	}
	rank := len(whole.Type.Shape)
	axis, ok := onnx.Axis(n.Int("axis", 0), rank)
	if !ok || whole.Type.Shape[axis].IsStatic() {
		return
	}
	for _, v := range n.Returns() {
		if v.IsOutput() || len(v.Type.Shape) != rank {
			continue
		}
		shape := slices.Clone(v.Type.Shape)
		if shape[axis] = (onnx.Dim{}); len(declared[v.Name].Shape) == rank {
			shape[axis] = declared[v.Name].Shape[axis]
		}
		v.Type.Shape = shape
	}
}

// movedMark begins what ONNX Runtime adds to a name where it needs another one.
const movedMark = "_token_"

// turnedBack is the type of a value that ONNX Runtime made when it moved a Transpose
// behind the node that makes it, which is exact: it takes the type of what the node made
// before, turned back, and keeps it when the Transpose moves on, or goes in a sum of all axes.
func turnedBack(v *onnx.Value, exact onnx.Type, g *onnx.Graph, original original) (onnx.Type, bool) {
	for _, before := range original.madeBefore(v.Name) {
		t := original.declared[before]
		made := g.Value(before)
		if made != nil && made.IsOutput() {
			t = made.Type
		}
		if t.IsStatic() && exact.IsStatic() && sameExtents(t, exact) {
			return exact, true
		}
		if made == nil || made.Producer == nil || made.Producer.In(0) != v {
			continue
		}
		switch n := made.Producer; {
		// Of a shape that was cut, behind a Transpose, it takes all of the shape before and gathers what is asked for.
		case n.Is("Gather") && v.Producer.Is("Shape") && t.IsStatic() && exact.IsStatic():
			return exact, true
		// Of extents that have names only what the Transpose itself says is left.
		case n.Is("Transpose") && t.Ranked:
			shape := make(onnx.Shape, len(t.Shape))
			for i, axis := range traits.Permutation(n, len(shape)) {
				shape[axis] = t.Shape[i]
			}
			return onnx.TensorOf(t.DType, shape), true
		}
	}
	return onnx.Type{}, false
}

// madeBefore names what the node made that makes a value of such a name now: the value
// is named after the node, which in many files is named after what it makes.
func (o original) madeBefore(name string) []string {
	for {
		if made := o.outputs[name]; made != nil {
			return made
		}
		if o.values[name] {
			return []string{name}
		}
		end := strings.LastIndex(name, movedMark)
		if end < 0 {
			return nil
		}
		name = name[:end]
	}
}

// sameExtents reports extents that are equal but for their order.
func sameExtents(a, b onnx.Type) bool {
	sorted := func(t onnx.Type) []int64 {
		dims := make([]int64, len(t.Shape))
		for i, d := range t.Shape {
			dims[i], _ = d.Int()
		}
		slices.Sort(dims)
		return dims
	}
	return a.DType == b.DType && slices.Equal(sorted(a), sorted(b))
}

// insertedPrefix begins the names of values in float32 that stand for values in
// half: ONNX Runtime puts casts around nodes that have no kernel in half.
const insertedPrefix = "InsertedPrecisionFreeCast_"

// wasCast reports a node whose output is cast to half, and of unknown shape.
func wasCast(n *onnx.Node) bool {
	v := n.Out(0)
	return v != nil && !n.Is("Cast") && strings.HasPrefix(v.Name, insertedPrefix) && !v.Type.IsStatic()
}

// inferAsCast infers a node's outputs from the shapes that the file declares for
// what it read there, by these names; what it reads now names that too, for a node
// of a function that ONNX Runtime expanded. With its casts around it each node
// read those; then pairs of casts go, to half and back, and what a node reads now
// may be of unknown shape, but what was inferred stays. It reports whether the node is
// lost even so.
func inferAsCast(r *infer.Result, n *onnx.Node, follow following, names []string, declared map[string]onnx.Type) (bool, error) {
	now := make([]onnx.Type, len(n.Inputs))
	for i, v := range n.Reads() {
		now[i] = v.Type
	}
	for i, v := range n.Reads() {
		if v.IsConstant() {
			continue
		}
		name := strings.TrimPrefix(v.Name, insertedPrefix)
		if len(names) == len(n.Inputs) {
			name = names[i]
		}
		if t := declared[name]; t.Ranked {
			v.Type = onnx.TensorOf(v.Type.DType, t.Shape)
		}
	}
	err := r.Node(n)
	partsOfUnknown(n, declared)
	nothing := lost(n, follow)
	for i, v := range n.Reads() {
		v.Type = now[i]
	}
	return nothing, err
}

// lost reports a node of whose outputs ONNX Runtime infers nothing (of TopK's and a Slice's
// the rank): axes, sizes or a count that are not initializers, a Slice's places, axes or steps that
// are not followed either, or a part of unknown rank in a concatenation or before an operator of ofRank.
func lost(n *onnx.Node, follow following) bool {
	if n.Domain() != "" {
		return false
	}
	switch op := n.OpType(); {
	case strings.HasPrefix(op, "Reduce"), op == "Split", op == "Squeeze", op == "Unsqueeze", op == "TopK":
		return n.In(1) != nil && !n.In(1).Fixed()
	case op == "Slice":
		return slices.ContainsFunc(n.Inputs[1:], func(v *onnx.Value) bool { return v != nil && !v.Fixed() && !follow.value(v) })
	case slices.Contains(ofRank, op):
		return n.In(0) != nil && !n.In(0).Type.Ranked
	case op == "Concat":
		for _, v := range n.Reads() {
			if !v.Type.Ranked {
				return true
			}
		}
	}
	return false
}

// ofRank lists operators of whose output ONNX Runtime infers nothing without the rank of what
// they read, which package infer may: a Flatten has two axes, whatever it flattens.
var ofRank = []string{"Transpose", "Flatten", "DepthToSpace", "SpaceToDepth", "Col2Im", "STFT"}

// ForSaved completes o for the prediction of saved, the model that ONNX
// Runtime wrote when it was given the first: whether saved lists its nodes in
// execution order (it does, unless nothing had to be changed and the original
// came back), and whether all types were declared (ONNX Runtime keeps in mind
// what that declares, but does not write it), also of values that it added: it
// infers those of the casts that it puts around half types, and may not succeed.
func ForSaved(given, saved *onnx.Model, o Options) Options {
	a, b := kernelNodes(given), kernelNodes(saved)
	o.InOrder = len(a) != len(b)
	for i := 0; i < len(a) && !o.InOrder; i++ {
		o.InOrder = a[i].Label() != b[i].Label() || a[i].OpType() != b[i].OpType()
	}
	o.Saved = true
	o.original = originalOf(given)
	o.Declared = o.Declared || allDeclared(given, nil) && allDeclared(saved, o.original.declared)
	return o
}

// An original is what the file declares that a saved graph was made from: types
// of values, the names of what each node reads and makes, by the node's, and of all that
// nodes make.
type original struct {
	declared        map[string]onnx.Type
	inputs, outputs map[string][]string
	values          map[string]bool
}

func originalOf(m *onnx.Model) original {
	o := original{declaredTypes(m), map[string][]string{}, map[string][]string{}, map[string]bool{}}
	for _, n := range m.Graph.Nodes {
		names := make([]string, len(n.Inputs))
		for i, v := range n.Reads() {
			names[i] = v.Name
		}
		if n.Name() != "" {
			o.inputs[n.Name()] = names
		}
		for _, v := range n.Returns() {
			o.values[v.Name] = true
			if n.Name() != "" {
				o.outputs[n.Name()] = append(o.outputs[n.Name()], v.Name)
			}
		}
	}
	return o
}

// declaredTypes are the entries of the model's value_info.
func declaredTypes(m *onnx.Model) map[string]onnx.Type {
	declared := map[string]onnx.Type{}
	for _, p := range m.Graph.Proto.GetValueInfo() {
		declared[p.GetName()] = onnx.TypeFromProto(p.GetType())
	}
	return declared
}

// allDeclared reports that value_info, or types besides, holds a static type for
// every value inside the graph.
func allDeclared(m *onnx.Model, besides map[string]onnx.Type) bool {
	declared := map[string]onnx.Type{}
	maps.Copy(declared, besides)
	maps.Copy(declared, declaredTypes(m))
	for _, n := range kernelNodes(m) {
		for _, v := range n.Returns() {
			if !v.IsOutput() && !declared[v.Name].IsStatic() {
				return false
			}
		}
	}
	return true
}

// kernelNodes are the nodes that run.
func kernelNodes(m *onnx.Model) []*onnx.Node {
	out := make([]*onnx.Node, 0, len(m.Graph.Nodes))
	for _, n := range m.Graph.Nodes {
		if !n.Is("Constant") {
			out = append(out, n)
		}
	}
	return out
}
