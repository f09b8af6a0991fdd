package rewrite

// Frozen weights are held once. ONNX Runtime's kernels keep constant weights a
// second time, in a layout of their own, and once more for each layout that
// another product wants: the forward's and the backward's. Behind a barrier
// that waits for an input of the step, a weight is a constant no more:
//
//	W ─▶ Gemm              W and a packed copy
//	W ─▶ Gemm transB       a packed copy
//
//	W ─▶ Reshape ─┬▶ Gemm          W, in the file's own pages where it lies in
//	     input ───┘└▶ Gemm transB  a data file
//
// All products read the same view, which costs no memory. What they pay is
// that they pack a panel of the weight at a time whenever they run: the fewer
// rows they multiply, the larger a share of their time (docs/planning.md).

import "github.com/onnx-remat/remat/onnx"

// HoldOnce puts constants of which kernels would keep copies behind barriers,
// which stand before their first reader: the nodes are in the order in which
// they run. Copied says how many bytes a kernel would keep of a node's input;
// updated reports an input that the step writes over, for which nothing waits.
// The report counts weights.
func HoldOnce(g *onnx.Graph, copied func(n *onnx.Node, i int) int64, updated func(*onnx.Value) bool) (Report, error) {
	report := Report{Pass: "hold once"}
	bytes := map[*onnx.Value]int64{}
	for _, n := range g.Nodes {
		for i, v := range n.Inputs {
			bytes[v] += copied(n, i)
		}
	}
	trigger := smallestInput(g, updated)
	barriers, views := NewBarriers(g), map[*onnx.Value]*onnx.Value{}
	var order []*onnx.Node
	for _, n := range g.Nodes {
		for i, v := range n.Inputs {
			if bytes[v] <= foldLimit || copied(n, i) == 0 {
				continue
			}
			view, seen := views[v]
			if !seen {
				report.Requested++
				if trigger == nil {
					report.skip(v.Name, "the graph has no input that a barrier could wait for and that no update writes over")
				} else if barred, err := barriers.Put(v, trigger); err != nil {
					return report, err
				} else {
					report.Applied, view = report.Applied+1, barred
				}
				views[v] = view
			}
			if view != nil {
				n.SetInput(i, view)
			}
		}
		order = append(append(order, barriers.Take()...), n)
	}
	g.Nodes = order
	return report, nil
}
