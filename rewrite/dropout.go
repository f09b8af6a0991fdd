package rewrite

// From level 1 on ONNX Runtime removes a training Dropout whose mask nothing
// reads. Recomputation takes readers away: backward reads the clone's mask, or
// the first one's while the clone makes the output again. So an output without
// a reader of the mask beside it passes through a view that waits for the mask,
// which costs nothing:
//
//	Dropout ─▶ y ──────────────▶ Unsqueeze ─▶ y' ─▶ readers
//	       └─▶ mask ─▶ (no axes) ────┘
//
// It is no Reshape, as barriers are: ONNX Runtime makes one Reshape of two that
// follow one another, and of the first one's shape nothing would be left.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// useMasks makes every training Dropout's mask used and returns the new order.
func useMasks(g *onnx.Graph, order []*onnx.Node) ([]*onnx.Node, error) {
	barriers := NewBarriers(g)
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
		barriers.b.Scope = n.Out(0).Name
		y, err := barriers.Wait(readers[0].Node, n.Out(0), n.Out(1))
		if err != nil {
			return nil, fmt.Errorf("mask of %q: %w", n.Label(), err)
		}
		for _, u := range readers {
			if u.Index != onnx.Captured {
				u.Node.SetInput(u.Index, y)
			}
		}
		out = append(out, barriers.Take()...)
	}
	return out, nil
}
