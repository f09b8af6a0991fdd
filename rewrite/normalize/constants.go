package normalize

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// maxFold is the largest number of elements that folding makes a constant of.
const maxFold = 1024

// constants turns Constant nodes into initializers.
func constants(s *state) error {
	var gone []*onnx.Node
	for _, n := range s.g.Nodes {
		if !n.Is("Constant") || n.Out(0) == nil {
			continue
		}
		t := constantTensor(n)
		if t == nil {
			continue
		}
		s.becomeConstant(n.Out(0), t)
		gone = append(gone, n)
		s.count++
	}
	s.g.Remove(gone...)
	return nil
}

// becomeConstant puts an initializer of v's name in v's place; v is left dead
// unless it is a graph output, which stays computed.
func (s *state) becomeConstant(v *onnx.Value, t *onnx.Tensor) {
	if v.IsOutput() {
		c := s.g.AddConstant(v.Name+".value", t)
		s.g.ReplaceUses(v, c)
		return
	}
	name := v.Name
	s.g.Rename(v, s.g.FreshValueName(name+".old"))
	c := s.g.AddConstant(name, t)
	s.g.ReplaceUses(v, c)
}

// constantTensor reads the attribute of a Constant node, nil for the kinds that
// are not plain tensors.
func constantTensor(n *onnx.Node) *onnx.Tensor {
	if n.Out(0).IsOutput() {
		return nil
	}
	t := n.ConstantTensor()
	if t == nil || t.IsExternal() || t.DType() == onnx.String {
		return nil
	}
	return t
}

// casts turns CastLike, whose second input lends nothing but its type, into Cast.
// ONNX Runtime has no kernel for it and does the same.
func casts(s *state) error {
	for _, n := range s.g.Nodes {
		like := n.In(1)
		if !n.Is("CastLike") || like == nil || like.Type.DType == onnx.Undefined {
			continue
		}
		n.SetInputs(n.Inputs[0])
		n.SetOpType("Cast")
		n.SetAttr(onnx.IntAttr("to", int64(like.Type.DType)))
		s.count++
	}
	return nil
}

// identities removes nodes that hand their input on. A graph output keeps its
// node.
func identities(s *state) error {
	for _, n := range slices.Clone(s.g.Nodes) {
		x, y := n.In(0), n.Out(0)
		if before := castBack(n); before != nil && y != nil {
			s.g.ReplaceUses(y, before)
			s.count++
			continue
		}
		if x == nil || y == nil || !handsOn(n) {
			continue
		}
		if m := n.Out(1); m != nil && !m.Dead() {
			continue
		}
		s.g.ReplaceUses(y, x)
		s.count++
	}
	return nil
}

func handsOn(n *onnx.Node) bool {
	switch {
	case n.Is("Identity"):
		return n.In(0).Type.Other == nil && StoppedBy(n) == ""
	case n.Is("Dropout"):
		return !traits.Draws(n) || ratioZero(n)
	case n.Is("Cast"):
		d := n.In(0).Type.DType
		return d != onnx.Undefined && n.Int("to", 0) == int64(d)
	}
	return false
}

// castBack is what a Cast brings back to its type from one that holds all its numbers, nil for another node. ONNX
// Runtime removes the two at every level, also where a subgraph reads what they make, and then cannot run that.
func castBack(n *onnx.Node) *onnx.Value {
	if !n.Is("Cast") || n.In(0) == nil || n.In(0).Producer == nil || !n.In(0).Producer.Is("Cast") {
		return nil
	}
	x := n.In(0).Producer.In(0)
	if x == nil || x.Type.DType == onnx.Undefined || n.Int("to", 0) != int64(x.Type.DType) || !holdsAll(n.In(0).Type.DType, x.Type.DType) {
		return nil
	}
	return x
}

// holdsAll reports a type that has every number of another one.
func holdsAll(wide, d onnx.DType) bool {
	switch {
	case d == onnx.Bool:
		return wide.IsInt() || wide.IsFloat()
	case d.IsFloat():
		return wide == onnx.Float64 && d != onnx.Float64 || wide == onnx.Float32 && d.IsHalf()
	case d.IsInt() && wide.IsInt() && d != onnx.Uint64:
		least, most := d.IntRange()
		from, to := wide.IntRange()
		return wide != d && from <= least && most <= to
	}
	return false
}

// noops removes nodes that hand on one of their inputs for what the others are
// (NoopElimination, ExpandElimination and EliminateSlice of ONNX Runtime), and the biases of zeros that dynamo's
// exporter fills in for convolutions without one; in three dimensions they have a shape that no
// kernel takes.
func noops(s *state) error {
	for _, n := range slices.Clone(s.g.Nodes) {
		if n.Is("Conv", "ConvTranspose") && filledWithZeros(n.In(2)) {
			n.SetInputs(n.In(0), n.In(1))
			s.count++
		}
		y := n.Out(0)
		if y == nil || y.IsOutput() {
			continue
		}
		if x := neutralTo(n); x != nil && x.Type.Known() && x.Type.Same(y.Type) {
			s.g.ReplaceUses(y, x)
			s.count++
		}
	}
	return nil
}

// filledWithZeros reports what is made by filling a shape with zeros. A stored tensor of zeros
// may be a parameter.
func filledWithZeros(v *onnx.Value) bool {
	if v == nil || v.Producer == nil {
		return false
	}
	zero, known := v.Producer.In(0).Number()
	return v.Producer.Is("ConstantOfShape") && v.IsZero() || v.Producer.Is("Expand") && known && zero == 0
}

// neutralTo is the input that a node hands on if it does not broadcast it, nil for none.
func neutralTo(n *onnx.Node) *onnx.Value {
	is := func(i int, number float64) bool {
		x, ok := n.In(i).Number()
		return ok && x == number
	}
	switch {
	case n.Is("Add") && is(1, 0), n.Is("Sub") && is(1, 0), n.Is("Mul") && is(1, 1), n.Is("Div") && is(1, 1):
		return n.In(0)
	case n.Is("Expand"), n.Is("Slice") && stepsOfOne(n): // extents that nobody knows may differ
		if x, y := n.In(0), n.Out(0); x.Type.Ranked && y.Type.Ranked && x.Type.Shape.Equal(y.Type.Shape) {
			return x
		}
	case n.Is("Add") && is(0, 0), n.Is("Mul") && is(0, 1):
		return n.In(1)
	}
	return nil
}

// copies turns a Tile into Expand, of which more is known: what a batch shares is made for a part of it as for all.
// Copies of an axis of several elements are an axis before it, until a Reshape joins the two.
func copies(s *state) error {
	for _, n := range s.nodes() {
		s.copied(n)
	}
	return nil
}

// copied turns a node into Expand where it is a Tile by known numbers, or of axes of one element.
func (s *state) copied(n *onnx.Node) {
	x, y := n.In(0), n.Out(0)
	if !n.Is("Tile") || rank(x) < 0 || y == nil {
		return
	}
	s.scope(n)
	if s.repeatsOnes(x.Type.Shape, n.In(1)) {
		s.replace(y, s.b.Op("Expand", build.In(x, n.In(1))), n)
		return
	}
	times, ok := s.types.Int64s(n.In(1))
	if !ok || len(times) != rank(x) || slices.Contains(times, 0) {
		return
	}
	var before []int // the axes of copies
	var shape []int64
	for i, d := range x.Type.Shape {
		if times[i] > 1 && !d.Is(1) {
			before, shape = append(before, len(shape)), append(shape, times[i], 1)
		} else {
			shape = append(shape, times[i])
		}
	}
	if _, ok := build.ReshapeTarget(y.Type.Shape); ok {
		z := s.b.Op("Expand", build.In(s.b.Op("Unsqueeze", build.In(x, s.b.Axes(before...))), s.b.Ints(shape...)))
		s.replace(y, s.b.ReshapeTo(z, y.Type.Shape), n)
	}
}

// repeatsOnes reports repeats that are 1 for every axis of more than one element.
func (s *state) repeatsOnes(shape onnx.Shape, repeats *onnx.Value) bool {
	times, known := s.types.Ints(repeats)
	for i, d := range shape {
		if !d.Is(1) && (!known || i >= len(times) || !times[i].Is(1)) {
			return false
		}
	}
	return true
}

// stepsOfOne reports a Slice that leaves nothing out between its bounds.
func stepsOfOne(n *onnx.Node) bool {
	if n.In(4) == nil {
		return true
	}
	t := n.In(4).Constant()
	if t == nil {
		return false
	}
	steps, err := t.Int64s()
	return err == nil && !slices.ContainsFunc(steps, func(k int64) bool { return k != 1 })
}

func ratioZero(n *onnx.Node) bool {
	ratio, known := n.In(1).Number()
	return known && ratio == 0
}

// fold replaces integers that inference knows in full, then floats of one
// element that are computed from constants alone, and what is expanded to nothing.
func fold(s *state) error {
	given := map[*onnx.Value]bool{}
	for _, v := range s.g.Initializers {
		given[v] = true
	}
	for _, n := range slices.Clone(s.g.Nodes) {
		s.foldKnown(n)
		if v := n.Out(0); v != nil && len(n.Outputs) == 1 && !v.IsOutput() && !v.Dead() {
			t := foldFloat(n)
			if t == nil {
				t = foldVector(n, given)
			}
			if t == nil {
				t = foldNothing(n)
			}
			if t != nil {
				s.becomeConstant(v, t)
				s.count++
			}
		}
	}
	return nil
}

// foldKnown replaces what a node returns by the integers that inference knows in full.
func (s *state) foldKnown(n *onnx.Node) {
	for _, v := range n.Returns() {
		if v.IsOutput() || v.Dead() {
			continue
		}
		if t := s.known(v); t != nil {
			s.becomeConstant(v, t)
			s.count++
		}
	}
}

// Sizes makes constants of the integers that follow from the model's types once free dimensions have
// numbers, and sees what is picked and repeated by them: a training graph that was derived while some
// were computes them, and does not know which of them are equal.
func Sizes(m *onnx.Model, dims map[string]int64) error {
	s, err := inferred(m, dims)
	if err != nil {
		return err
	}
	for _, n := range s.nodes() {
		s.foldKnown(n)
	}
	for _, n := range s.nodes() {
		s.picked(n)
		s.copied(n)
	}
	if s.count > 0 {
		m.Graph.RemoveDead()
	}
	return s.b.Err()
}

// known returns the content of an integer or bool value that inference has in
// full.
func (s *state) known(v *onnx.Value) *onnx.Tensor {
	d := v.Type.DType
	dims, static := v.Type.Shape.Ints()
	if !v.Type.Ranked || !static || d != onnx.Int64 && d != onnx.Int32 && d != onnx.Bool {
		return nil
	}
	elems, ok := s.types.Int64s(v)
	if !ok || len(elems) > maxFold {
		return nil
	}
	if n, ok := onnx.Elements(dims); !ok || n != int64(len(elems)) {
		return nil
	}
	var data []byte
	for _, k := range elems {
		switch d {
		case onnx.Int64:
			data = binary.LittleEndian.AppendUint64(data, uint64(k))
		case onnx.Int32:
			data = binary.LittleEndian.AppendUint32(data, uint32(int32(k)))
		default:
			data = append(data, byte(k))
		}
	}
	return onnx.NewTensor(d, dims, data)
}

// foldNothing is the value that an Expand makes to no elements, as of a repeat_interleave with a count
// of 0: ONNX Runtime from level 1 on leaves a 1 where the 0 is asked for, and takes the node away.
func foldNothing(n *onnx.Node) *onnx.Tensor {
	t := n.Out(0).Type
	dims, static := t.Shape.Ints()
	if !n.Is("Expand") || !t.Empty() || !static || t.DType.Bits() == 0 {
		return nil
	}
	return onnx.NewTensor(t.DType, dims, nil)
}

// foldFloat computes a node of one-element constants.
func foldFloat(n *onnx.Node) *onnx.Tensor {
	if n.Domain() != "" || n.Out(0) == nil {
		return nil
	}
	d := n.Out(0).Type.DType
	dims, static := n.Out(0).Type.Shape.Ints()
	if !d.IsFloat() || !static || !n.Out(0).Type.Ranked {
		return nil
	}
	if k, ok := onnx.Elements(dims); !ok || k != 1 {
		return nil
	}
	var in []float64
	for _, v := range n.Inputs {
		x, ok := v.Number()
		if !ok {
			return nil
		}
		in = append(in, x)
	}
	f := scalarOps[n.OpType()]
	if f == nil || len(in) == 0 || len(in) > 2 {
		return nil
	}
	y := f(in[0], in[len(in)-1])
	if math.IsNaN(y) {
		return nil
	}
	return onnx.FloatTensor(d, []float64{y}, dims...)
}

// maxVector is the longest float vector that is folded: the scales of a Resize.
const maxVector = 16

// foldVector puts together short float vectors that are made of constants: for
// a Resize, or where a part has been folded itself. Vectors that are all given
// may be parameters (the two biases of a recurrent layer).
func foldVector(n *onnx.Node, given map[*onnx.Value]bool) *onnx.Tensor {
	d := n.Out(0).Type.DType
	if !n.Is("Concat", "Cast") || !d.IsFloat() || rank(n.Out(0)) != 1 {
		return nil
	}
	var values []float64
	made := resizes(n.Out(0))
	for _, v := range n.Inputs {
		if v == nil || !v.IsConstant() || rank(v) != 1 {
			return nil
		}
		made = made || !given[v]
		if k, err := v.Init.Elements(); err != nil || k > maxVector {
			return nil
		}
		part, err := v.Init.Float64s()
		if err != nil {
			return nil
		}
		values = append(values, part...)
	}
	if len(values) > maxVector || !made {
		return nil
	}
	return onnx.FloatTensor(d, values, int64(len(values)))
}

// resizes reports what a Resize takes, also by way of a Cast, as of scales in half.
func resizes(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		return u.Node.Is("Resize", "Upsample") || u.Node.Is("Cast") && u.Index == 0 && resizes(u.Node.Out(0))
	})
}

// scalarOps are the operators that foldFloat computes; of one operand b is a.
var scalarOps = map[string]func(a, b float64) float64{
	"Add":        func(a, b float64) float64 { return a + b },
	"Sub":        func(a, b float64) float64 { return a - b },
	"Mul":        func(a, b float64) float64 { return a * b },
	"Div":        func(a, b float64) float64 { return a / b },
	"Pow":        math.Pow,
	"Sqrt":       func(a, b float64) float64 { return math.Sqrt(a) },
	"Reciprocal": func(a, b float64) float64 { return 1 / a },
	"Neg":        func(a, b float64) float64 { return -a },
	"Exp":        func(a, b float64) float64 { return math.Exp(a) },
	"Log":        func(a, b float64) float64 { return math.Log(a) },
	"Cast":       func(a, b float64) float64 { return a },
	"Unsqueeze":  func(a, b float64) float64 { return a },
	"Squeeze":    func(a, b float64) float64 { return a },
	"Reshape":    func(a, b float64) float64 { return a },
	"Expand":     func(a, b float64) float64 { return a },
	"Identity":   func(a, b float64) float64 { return a },
}
