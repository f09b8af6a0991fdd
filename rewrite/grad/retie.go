package grad

// An output layer that shares the embedding's matrix reads its transpose, and the
// exporter's optimizer computes that ahead: two initializers, which training would
// pull apart. Where one is the transpose of the other, element by element, it is
// written as one again.
//
// Dynamo's file names what an initializer was computed from. In others the numbers alone
// tell, and fresh layers may be copies of each other: there it takes an option, and without
// it a warning names the pair.

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// retie lets readers of a computed transpose read a Transpose of the parameter that
// it comes from, where the file still holds that, and returns the names of what
// stays apart from such a parameter.
func retie(g *onnx.Graph, s *Signature) (apart []string) {
	for _, v := range slices.Clone(g.Initializers) {
		for _, from := range s.origins(v.Name) {
			p := g.Value(from)
			switch {
			case v.Init == nil || p == nil || p.Init == nil || p == v || len(p.Uses()) == 0:
			case isTranspose(v.Init, p.Init):
				tie(g, v, p)
			default:
				apart = append(apart, v.Name+" and "+from)
			}
		}
	}
	return apart
}

// tie lets the readers of v read the transpose of p.
func tie(g *onnx.Graph, v, p *onnx.Value) {
	n := g.NewNode("", "Transpose", "remat/tie/"+v.Name, []*onnx.Value{p}, []string{v.Name + ".tied"}, onnx.IntsAttr("perm", 1, 0))
	n.Out(0).Type = v.Type
	g.Nodes = slices.Insert(g.Nodes, 0, n)
	g.ReplaceUses(v, n.Out(0))
	if v.Dead() && !v.IsInput() {
		g.RemoveInitializer(v)
	}
}

// transposes lists pairs of matrices of which one is the other's transpose: first what is to
// stay, which is gathered, else has a name that no exporter made.
func transposes(g *onnx.Graph) (pairs [][2]*onnx.Value) {
	type alike struct {
		dtype onnx.DType
		sides [2]int64
	}
	groups := map[alike][]*onnx.Value{}
	for _, v := range g.Initializers {
		d := v.Init.Dims()
		if len(d) != 2 || !v.Init.DType().IsFloat() || !gathered(v) && !multiplies(v) || uniform(v) {
			continue
		}
		key := alike{v.Init.DType(), [2]int64{min(d[0], d[1]), max(d[0], d[1])}}
		for _, p := range groups[key] {
			if !isTranspose(v.Init, p.Init) || isTranspose(p.Init, p.Init) {
				continue
			}
			if gathered(v) || !gathered(p) && ComputedAhead(p.Name) {
				pairs = append(pairs, [2]*onnx.Value{v, p})
			} else {
				pairs = append(pairs, [2]*onnx.Value{p, v})
			}
		}
		groups[key] = append(groups[key], v)
	}
	return pairs
}

// retieAlike ties such pairs, or says of each that it is trained apart. It returns a line for
// each.
func retieAlike(g *onnx.Graph, ties bool) (lines []string) {
	for _, pair := range transposes(g) {
		kept, v := pair[0], pair[1]
		switch {
		case !ties:
			lines = append(lines, fmt.Sprintf("parameter %q is the transpose of %q, as where a model ties its head to its embedding, and they are trained apart; --tie trains them as one", v.Name, kept.Name))
		case v.Init != nil && !v.Dead() && !kept.Dead():
			lines = append(lines, fmt.Sprintf("parameter %q serves as %q too, which holds its transpose", kept.Name, v.Name))
			tie(g, v, kept)
		}
	}
	return lines
}

// gathered reports that rows of a matrix are gathered, as of an embedding.
func gathered(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index == 0 && u.Node.Is("Gather") })
}

// multiplies reports a factor of a product.
func multiplies(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index < 2 && u.Node.Is("MatMul", "Gemm") })
}

// isTranspose reports matrices of which one holds the other's rows as columns.
func isTranspose(a, b *onnx.Tensor) bool {
	d, e := a.Dims(), b.Dims()
	if len(d) != 2 || len(e) != 2 || d[0] != e[1] || d[1] != e[0] || a.DType() != b.DType() {
		return false
	}
	x, err := a.Bytes()
	if err != nil {
		return false
	}
	y, err := b.Bytes()
	if err != nil || len(x) != len(y) || len(x) == 0 {
		return false
	}
	size := len(x) / int(d[0]*d[1])
	rows, cols := int(d[0]), int(d[1])
	for i := range rows {
		for j := range cols {
			if !bytes.Equal(x[(i*cols+j)*size:][:size], y[(j*rows+i)*size:][:size]) {
				return false
			}
		}
	}
	return true
}
