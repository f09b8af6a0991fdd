package rewrite

// From level 1 on ONNX Runtime removes a training Dropout whose mask nothing
// reads. Recomputation takes readers away: backward reads the clone's mask, or
// the first one's while the clone makes the output again. So an output without
// a reader of the mask beside it is led past the mask:
//
//	Dropout ─▶ y ─▶ Wait ─▶ y' ─▶ readers
//	       └─▶ mask ─┘

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

// useMasks makes every training Dropout's mask used and returns the new order.
func useMasks(g *onnx.Graph, order []*onnx.Node) ([]*onnx.Node, error) {
	edges := build.New(g, nil, "dropout")
	var out []*onnx.Node
	for _, n := range order {
		out = append(out, n)
		if !n.Is("Dropout") || n.In(2) == nil || n.Out(1) == nil || !n.Out(1).Dead() || n.Out(0) == nil {
			continue
		}
		readers := append([]onnx.Use(nil), n.Out(0).Uses()...)
		if len(readers) == 0 {
			continue
		}
		y := control.Wait(edges, n.Out(0), n.Out(1))
		for _, u := range readers {
			if u.Index != onnx.Captured {
				u.Node.SetInput(u.Index, y)
			}
		}
		out = append(out, edges.Take()...)
	}
	return control.Lower(g, out)
}
