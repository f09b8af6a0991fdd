package grad

// Stored statistics of a batch normalization that a file writes out and does not name, as
// Keras's and JAX's exporters do:
//
//	y = x · a + (shift − mean · a),  a = scale / √(variance + ε)
//
// or (x − mean) · a + shift. The variance meets nothing but a root, and the mean nothing but
// what comes of such a root, and of no data.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// maxEpsilon is the most that is added to a variance.
const maxEpsilon = 0.1

// writtenStatistics says of the initializers that serve as such variances and means what they are.
func writtenStatistics(g *onnx.Graph) map[*onnx.Value]string {
	found := map[*onnx.Value]string{}
	find := func(why string, kind func(onnx.Use) bool) {
		for _, v := range g.Initializers {
			if found[v] == "" && v.Type.DType.IsFloat() && len(v.Uses()) > 0 && servesOnly(v, kind) {
				found[v] = why
			}
		}
	}
	if find("a stored variance: nothing but its root is used", underRoot); len(found) == 0 {
		return nil
	}
	stored, rooted := map[*onnx.Value]bool{}, map[*onnx.Value]bool{} // comes of no data, and of a variance too
	for _, n := range g.Nodes {
		if len(n.Inputs) == 0 || slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && !v.Stored() && !stored[v] }) {
			continue
		}
		root := slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return found[v] != "" || rooted[v] })
		for _, o := range n.Outputs {
			stored[o], rooted[o] = true, root
		}
	}
	find("a stored mean: it is subtracted from what the root of a stored variance divides", func(u onnx.Use) bool { return subtracted(u, rooted) })
	return found
}

// underRoot reports that u reads what nothing but the root of is used, perhaps with a small
// number added.
func underRoot(u onnx.Use) bool {
	n := u.Node
	switch {
	case n.Is("Sqrt"):
		return true
	case n.Is("Pow") && u.Index == 0:
		x, ok := n.In(1).Behind("Cast", "Reshape").Number()
		return ok && (x == 0.5 || x == -0.5)
	case n.Is("Add") && len(n.Inputs) == 2:
		x, ok := n.In(1-u.Index).Behind("Cast", "Reshape").Number()
		return ok && x > 0 && x <= maxEpsilon && len(n.Out(0).Uses()) > 0 && servesOnly(n.Out(0), underRoot)
	}
	return false
}

// subtracted reports that u subtracts what it reads, before or after a product with what comes
// of a stored variance.
func subtracted(u onnx.Use, rooted map[*onnx.Value]bool) bool {
	n := u.Node
	scaled := func(u onnx.Use) bool {
		return u.Node.Is("Mul") && rooted[u.Node.In(1-u.Index)] || u.Node.Is("Div") && u.Index == 0 && rooted[u.Node.In(1)]
	}
	only := func(kind func(onnx.Use) bool) bool { return len(n.Out(0).Uses()) > 0 && servesOnly(n.Out(0), kind) }
	switch {
	case n.Is("Neg"):
		return only(func(u onnx.Use) bool { return subtracted(u, rooted) })
	case n.Is("Sub") && u.Index == 1:
		return only(scaled)
	case scaled(u):
		return only(func(u onnx.Use) bool { return u.Node.Is("Add") || u.Node.Is("Sub") && u.Index == 1 })
	}
	return false
}
