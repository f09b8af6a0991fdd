package normalize

// A choice between masks, as dynamo's exporter writes masked_fill of a mask, has no kernel in ONNX
// Runtime, which has Where of numbers only:
//
//	Where(c, a, b)   ─▶   Or(And(c, a), And(Not(c), b))

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func choices(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("Where") || n.Out(0) == nil || n.In(1) == nil || n.In(1).Type.DType != onnx.Bool {
			continue
		}
		s.scope(n)
		c := n.In(0)
		chosen := s.b.Op("And", build.In(c, n.In(1)))
		other := s.b.Op("And", build.In(s.b.Op("Not", build.In(c)), n.In(2)))
		s.replace(n.Out(0), s.b.Op("Or", build.In(chosen, other)), n)
	}
	return nil
}
