package step

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Accumulation is how many runs of a training graph make one update: the N of
// step mod N, by which the graph tells whether an update is due; 1 where it does not
// accumulate. Both numbers may be read through views, by which the phase waits for
// something else (package control).
func Accumulation(g *onnx.Graph) int64 {
	step := g.Value("step")
	if step == nil || !step.IsInput() {
		return 1
	}
	through := func(n *onnx.Node, input int) bool { return input == 0 && traits.IsView(n) }
	for _, n := range ReadersOf(step, nil, through) {
		if !n.Is("Mod") || Viewed(n.In(0)) != step {
			continue
		}
		if by := Viewed(n.In(1)); by != nil {
			if n, ok := by.Number(); ok && n >= 1 && n <= 1<<30 {
				return int64(n)
			}
		}
	}
	return 1
}

// Viewed is what a value is a view of.
func Viewed(v *onnx.Value) *onnx.Value {
	for v != nil && v.Producer != nil && traits.IsView(v.Producer) {
		v = v.Producer.In(0)
	}
	return v
}
