package rewrite_test

import (
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/rewrite"
)

// TestScatterIntoGrowsWithTheGraph: a graph network gathers from each of its layers, and the
// sums of what it scatters back are each looked at alone.
func TestScatterIntoGrowsWithTheGraph(t *testing.T) {
	ortest.GrowsWithTheGraph(t, 24, func(layers int) func() {
		m, _ := ortest.Parse(t, "model ir=10 opset=20\ngraph g {\nin ids int64[4,1]\ninit zero float32[] = [0]\ninit shape int64[2] = [5, 3]\n"+
			ortest.Layers(layers, "in up# float32[4,3]\nin a# float32[5,3]\nz# = Expand(zero, shape)\ns# = ScatterND(z#, ids, up#) {reduction=\"add\"}\nd# = Neg(a#)\ng# = Add(d#, s#)\nout g# float32[5,3]\n")+"}\n")
		return func() {
			if n := rewrite.ScatterInto(m.Graph); n != layers {
				t.Fatalf("%d of %d sums taken", n, layers)
			}
		}
	})
}
