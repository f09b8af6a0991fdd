package grad

// An output layer that shares the embedding's matrix reads its transpose, and the
// exporter's optimizer computes that ahead: two initializers, which training would
// pull apart. Where one is the transpose of the other, element by element, it is
// written as one again.

import (
	"bytes"
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
				n := g.NewNode("", "Transpose", "remat/tie/"+v.Name, []*onnx.Value{p}, []string{v.Name + ".tied"}, onnx.IntsAttr("perm", 1, 0))
				n.Out(0).Type = v.Type
				g.Nodes = slices.Insert(g.Nodes, 0, n)
				g.ReplaceUses(v, n.Out(0))
				if v.Dead() && !v.IsInput() {
					g.RemoveInitializer(v)
				}
			default:
				apart = append(apart, v.Name+" and "+from)
			}
		}
	}
	return apart
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
