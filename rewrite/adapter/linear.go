package adapter

// Linear layers, found by what the graph computes. A weight is an initializer that,
// perhaps through nodes that keep or transpose a matrix, is the right operand of
// MatMul or Gemm:
//
//	W [in,out] ──────────────────────────────▶ MatMul, Gemm          GPT-2's Conv1D
//	W [out,in] ─Transpose────────────────────▶ MatMul                torch.nn.Linear
//	W [out,in] ──────────────────────────────▶ Gemm transB
//	W (any) ─Cast, Reshape, DequantizeLinear─▶ one of these
//	W [out,blocks,bytes] ────────────────────▶ MatMulNBits           ONNX Runtime's, packed
//
// https://onnx.ai/onnx/operators/onnx__Gemm.html, onnx__MatMul.html. Names say nothing.

import (
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A Linear is a weight with the products that multiply by it. Of a fused projection it
// is one.
type Linear struct {
	Weight  *onnx.Value
	In, Out int64
	// Transposed: the weight's elements lie as [out,in], not as [in,out].
	Transposed bool
	// Quantized: the products read a DequantizeLinear of the weight, or codes.
	Quantized bool
	Products  []*onnx.Node
	// Others read the weight too, as a Gather does that of a tied embedding.
	Others []*onnx.Node
}

// Tied reports a weight that is not the linear layer's alone.
func (l *Linear) Tied() bool { return len(l.Others) > 0 }

// Module is the module of the products, "" for none; of several the first by name.
func (l *Linear) Module() string {
	module := l.Products[0].Module()
	for _, n := range l.Products {
		module = min(module, n.Module())
	}
	return module
}

// Find returns the linear layer that an initializer is the weight of; nil and why
// where it is of none.
func Find(w *onnx.Value) (*Linear, string) {
	l := &Linear{Weight: w}
	s := search{Linear: l}
	s.follow(w, view{shape: w.Init.Dims()})
	switch {
	case s.twoWays:
		return nil, "its products read it both ways, as [in,out] and as [out,in]"
	case len(l.Products) == 0 && len(l.Others) == 0:
		return nil, "nothing reads it"
	case len(l.Products) == 0:
		return nil, readers(l.Others) + " reads it, and nothing multiplies by it as the right-hand matrix"
	}
	return l, ""
}

// readers lists the operators of nodes, each once.
func readers(nodes []*onnx.Node) string {
	var ops []string
	for _, n := range nodes {
		if !slices.Contains(ops, n.OpType()) {
			ops = append(ops, n.OpType())
		}
	}
	return strings.Join(ops, " and ")
}

// A view is how nodes leave a weight.
type view struct {
	shape                 []int64
	transposed, quantized bool
}

type search struct {
	*Linear
	twoWays bool
}

// follow looks at the readers of a weight, or of what nodes made of it.
func (s *search) follow(v *onnx.Value, as view) {
	for _, u := range v.Uses() {
		next, ok := as.through(u)
		switch {
		case ok:
			s.follow(u.Node.Out(0), next)
		case u.Index == 1 && u.Node.Is("MatMul", "Gemm") && len(as.shape) == 2 && u.Node.In(0) != v:
			s.product(u.Node, as)
		case u.Index == 1 && packed(u.Node):
			n := u.Node
			s.add(n, n.Int("K", 0), n.Int("N", 0), view{transposed: true, quantized: true})
		default:
			s.Others = append(s.Others, u.Node)
		}
	}
}

// packed reports a product by codes of a few bits.
func packed(n *onnx.Node) bool {
	return n.Domain() == "com.microsoft" && n.OpType() == "MatMulNBits"
}

// product adds a product by a matrix.
func (s *search) product(n *onnx.Node, as view) {
	in, out := as.shape[0], as.shape[1]
	if n.Is("Gemm") && n.Int("transB", 0) != 0 {
		in, out, as.transposed = out, in, !as.transposed
	}
	s.add(n, in, out, as)
}

// add adds a product by a matrix [in,out].
func (s *search) add(n *onnx.Node, in, out int64, as view) {
	switch first := len(s.Products) == 0; {
	case first:
		s.In, s.Out, s.Transposed, s.Quantized = in, out, as.transposed, as.quantized
	case in != s.In || out != s.Out || as.transposed != s.Transposed:
		s.twoWays = true
		return
	}
	s.Products = append(s.Products, n)
}

// through is the view behind a node that keeps the elements in their order, or
// transposes a matrix.
func (as view) through(u onnx.Use) (view, bool) {
	n := u.Node
	if u.Index != 0 || n.Out(0) == nil || n.Out(0).IsOutput() {
		return as, false
	}
	switch {
	case n.Is("Cast"), n.Is("Identity"):
		return as, true
	case n.Is("DequantizeLinear"):
		as.quantized = true
		return as, true
	case n.Is("Transpose") && len(as.shape) == 2:
		if traits.SwapsLastTwo(traits.Permutation(n, 2)) {
			as.shape, as.transposed = []int64{as.shape[1], as.shape[0]}, !as.transposed
		}
		return as, true
	case traits.Reshapes(n) && n.Out(0).Type.Ranked:
		shape, known := n.Out(0).Type.Shape.Ints()
		known = known && (!as.transposed || sameMatrix(as.shape, shape))
		as.shape = shape
		return as, known
	}
	return as, false
}

// sameMatrix reports shapes that are the same but for axes of 1: neither axis of the matrix goes into the other.
func sameMatrix(a, b []int64) bool {
	wide := func(shape []int64) []int64 {
		return slices.DeleteFunc(slices.Clone(shape), func(n int64) bool { return n == 1 })
	}
	return slices.Equal(a, b) || len(wide(a)) == 2 && slices.Equal(wide(a), wide(b))
}

// Linears lists the linear layers of a graph in the order of its initializers.
func Linears(g *onnx.Graph) []*Linear {
	var list []*Linear
	for _, v := range g.Initializers {
		if l, _ := Find(v); l != nil {
			list = append(list, l)
		}
	}
	return list
}
