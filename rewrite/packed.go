package rewrite

// Frozen weights are held once. ONNX Runtime's kernels keep constant weights a
// second time, in a layout of their own, and once more for each layout that
// another product wants: the forward's and the backward's. Behind a barrier
// that waits for an input of the step, a weight is a constant no more:
//
//	W ─▶ Gemm              W and a packed copy
//	W ─▶ Gemm transB       a packed copy
//
//	W ─▶ Wait ─┬▶ Gemm          W, in the file's own pages where it lies in
//	input ──┘  └▶ Gemm transB   a data file
//
// All products read the same view, which costs no memory. What they pay is
// that they pack a panel of the weight at a time whenever they run: the fewer
// rows they multiply, the larger a share of their time (docs/planning.md).

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

// Copies say what kernels would keep of constants.
type Copies struct {
	// Bytes is the size of the copy of a node's input, 0 for none.
	Bytes func(n *onnx.Node, i int) int64
	// Leave says why the copies of a weight stay, "" where they do not.
	Leave func(v *onnx.Value) string
	// Updated reports an input that the step writes over: nothing waits for it.
	Updated func(v *onnx.Value) bool
}

// HoldOnce puts constants of which kernels would keep copies behind barriers,
// which stand before their first reader: the nodes are in the order in which
// they run. The report counts weights.
func HoldOnce(g *onnx.Graph, c Copies) (Report, error) {
	report := Report{Pass: "hold once"}
	bytes := map[*onnx.Value]int64{}
	for _, n := range g.Nodes {
		for i, v := range n.Inputs {
			bytes[v] += c.Bytes(n, i)
		}
	}
	trigger := smallestInput(g, c.Updated)
	edges, views := build.New(g, nil, "hold once"), map[*onnx.Value]*onnx.Value{}
	view := func(v *onnx.Value) *onnx.Value {
		if w, seen := views[v]; seen {
			return w
		}
		report.Requested++
		views[v] = nil
		if why := c.Leave(v); why != "" {
			report.skip(v.Name, "%s", why)
			return nil
		}
		if trigger == nil {
			report.skip(v.Name, "no graph input can serve as trigger: every one is updated in place")
			return nil
		}
		views[v] = control.Wait(edges, v, trigger)
		report.Applied++
		return views[v]
	}
	var order []*onnx.Node
	for _, n := range g.Nodes {
		for i, v := range n.Inputs {
			if bytes[v] <= foldLimit || c.Bytes(n, i) == 0 {
				continue
			}
			if w := view(v); w != nil {
				n.SetInput(i, w)
			}
		}
		order = append(append(order, edges.Take()...), n)
	}
	var err error
	g.Nodes, err = control.Lower(g, order)
	return report, err
}
