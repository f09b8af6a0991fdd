package normalize

// What ONNX Runtime's optimizers would move into a product: Transposes and
// constant factors.
//
// Transposes: at level 1 one is pushed through Reshapes that only join or split
// other axes; at level 99 one that exchanges the last two axes, or moves the first
// axis before the last, becomes part of a FusedMatMul. Both leave a Transpose
// alone whose last axis is split in two, one of them of extent one:
//
//	x[s,b,d] ─Transpose(1,0,2)─▶ [b,s,d]
//	x[s,b,d] ─Reshape─▶ [s,b,1,d] ─Transpose(1,0,2,3)─▶ [b,s,1,d] ─Reshape─▶ [b,s,d]
//
// One that moves axes of extent one alone is a Reshape, and is made one: level 1 would join it
// with the Reshapes around it to another Transpose. One of a Transpose is one with it, or nothing.
//
// Factors: at level 99 one that multiplies an operand or the result of a product
// becomes the alpha of a FusedMatMul, which rounds after the sum and not before
// it. It stays where it is when it works on another shape than the product:
//
//	x[s,d] ─Mul(k)─▶ MatMul
//	x[s,d] ─Unsqueeze─▶ [1,s,d] ─Mul(k)─▶ [1,s,d] ─Squeeze─▶ [s,d] ─▶ MatMul
//
// The views share their input's memory.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Unfuse rewrites the Transposes and the factors of a graph that would otherwise
// be fused into a product, and returns their number. types must know the graph's
// values.
func Unfuse(m *onnx.Model, types *infer.Result) (int, error) {
	s := newState(m, types)
	for _, n := range s.nodes() {
		if n.Is("Transpose") && n.Out(0) != nil && !n.Out(0).IsOutput() && rank(n.In(0)) > 0 {
			s.simplify(n)
		}
	}
	count := s.count
	if err := reshapes(s); err != nil {
		return 0, err
	}
	s.count = count
	for _, n := range s.nodes() {
		if n.Is("Transpose") && n.Out(0) != nil && !n.Out(0).IsOutput() && fusable(n) {
			s.splitLast(n)
		}
		if scalesProduct(n) {
			s.scaleApart(n)
		}
	}
	m.Graph.RemoveDead()
	count = s.count
	if err := reshapes(s); err != nil {
		return 0, err
	}
	m.Graph.RemoveDead()
	return count, s.b.Err()
}

// simplify makes a Transpose a Reshape, or one with the Transpose that it reads.
func (s *state) simplify(n *onnx.Node) {
	x, y := n.In(0), n.Out(0)
	perm := traits.Permutation(n, rank(x))
	s.scope(n)
	if movesNothing(x, perm) {
		s.replace(y, s.b.ReshapeTo(x, y.Type.Shape), n)
		return
	}
	first := made(x, "Transpose")
	if first == nil || rank(first.In(0)) != len(perm) {
		return
	}
	both := traits.Compose(traits.Permutation(first, len(perm)), perm)
	if slices.IsSorted(both) { // each axis is where it was
		s.g.ReplaceUses(y, first.In(0))
		s.count++
		return
	}
	s.replace(y, s.b.Op("Transpose", build.In(first.In(0)), build.PermAttr(both...)), n)
}

// movesNothing reports a permutation of x that moves axes of extent one alone.
func movesNothing(x *onnx.Value, perm []int) bool {
	last := -1
	for _, a := range perm {
		switch {
		case x.Type.Shape[a].Is(1):
		case a < last:
			return false
		default:
			last = a
		}
	}
	return true
}

// fusable reports a Transpose of one of the forms that meets a product, perhaps
// behind a Reshape, or one that another operator reads, past which it could be
// moved.
func fusable(n *onnx.Node) bool {
	r := rank(n.In(0))
	if r < 3 {
		return false
	}
	perm := traits.Permutation(n, r)
	direct := traits.SwapsLastTwo(perm) || movesFirst(perm)
	for _, u := range n.Out(0).Uses() {
		switch {
		case u.Node.Is("MatMul"):
			if direct {
				return true
			}
		case u.Node.Is("Conv", "ConvTranspose", "Gemm", "LSTM", "GRU", "RNN", "LayerNormalization", "Gather", "ScatterElements", "Shape"):
			// Nothing is moved past these.
		case !u.Node.Is("Reshape") || u.Index != 0:
			return true
		case direct && movedBehind(u.Node, r, traits.SwapsLastTwo(perm)):
			return true
		}
	}
	return false
}

// movedBehind reports a Reshape of a value of that rank through which a
// Transpose could reach what reads it. A swap whose leading axes are joined
// before a product stays as it is.
func movedBehind(reshape *onnx.Node, rankBefore int, swap bool) bool {
	y := reshape.Out(0)
	if y == nil {
		return false
	}
	for _, u := range y.Uses() {
		joined := u.Node.Is("MatMul") && swap && rank(y) < rankBefore
		if !joined && !u.Node.Is("Gemm") {
			return true
		}
	}
	return false
}

// movesFirst reports the permutations that take the first axis to the place
// before the last, or to the last, all others in order.
func movesFirst(perm []int) bool {
	r := len(perm)
	rest := make([]int, 0, r)
	at := -1
	for i, a := range perm {
		if a == 0 {
			at = i
			continue
		}
		rest = append(rest, a)
	}
	for i, a := range rest {
		if a != i+1 {
			return false
		}
	}
	return at == r-2 || at == r-1
}

// splitLast rewrites one Transpose.
func (s *state) splitLast(n *onnx.Node) {
	x, y := n.In(0), n.Out(0)
	r := rank(x)
	shape := append(onnx.Shape(nil), x.Type.Shape[:r-1]...)
	shape = append(shape, onnx.Static(1), x.Type.Shape[r-1])
	var perm []int
	for _, a := range traits.Permutation(n, r) {
		if a == r-1 {
			perm = append(perm, r-1, r)
		} else {
			perm = append(perm, a)
		}
	}
	s.scope(n)
	from := x
	if p := made(x, "Reshape"); p != nil && !x.IsOutput() {
		from = p.In(0) // one Reshape does for a chain of them
	}
	wide := s.b.ReshapeTo(from, shape)
	if wide == nil {
		return
	}
	t := s.b.Op("Transpose", build.In(wide), build.PermAttr(perm...))
	back := s.b.ReshapeTo(t, y.Type.Shape)
	if back == nil {
		s.g.Remove(s.b.Take()...)
		return
	}
	s.g.InsertBefore(n, s.b.Take()...)
	for _, u := range append([]onnx.Use(nil), y.Uses()...) {
		if u.Node.Is("Reshape") && u.Index == 0 {
			s.scope(u.Node)
			if z := s.b.ReshapeTo(t, u.Node.Out(0).Type.Shape); z != nil {
				s.g.InsertBefore(u.Node, s.b.Take()...)
				s.replaceOutput(u.Node.Out(0), z, u.Node)
			}
		}
	}
	s.g.ReplaceUses(y, back)
	s.count++
}

// scalesProduct reports a node that multiplies an operand or the result of a
// product, which nothing else reads, by a constant.
func scalesProduct(n *onnx.Node) bool {
	if !n.Is("Mul", "Div") || n.Out(0) == nil {
		return false
	}
	x, _, ok := scaledBy(n.Out(0))
	if !ok || rank(x) < 0 || rank(x) != rank(n.Out(0)) {
		return false
	}
	if made(x, "MatMul") != nil && only(x) == n {
		return true
	}
	return slices.ContainsFunc(n.Out(0).Uses(), func(u onnx.Use) bool { return u.Node.Is("MatMul") })
}

// scaleApart lets such a node work on its operand with one axis more.
func (s *state) scaleApart(n *onnx.Node) {
	x, _, _ := scaledBy(n.Out(0))
	s.scope(n)
	axis := s.b.Ints(0)
	wide := s.b.Op("Unsqueeze", build.In(x, axis))
	operands := append([]*onnx.Value(nil), n.Inputs...)
	for i, v := range operands {
		if v == x {
			operands[i] = wide
		}
	}
	back := s.b.Op("Squeeze", build.In(s.b.Op(n.OpType(), operands), axis))
	s.replace(n.Out(0), back, n)
}
