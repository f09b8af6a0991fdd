package rewrite_test

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/rewrite"
)

// TestScatterIntoGrowsWithTheGraph: a graph network gathers from each of its layers, and the
// sums of what it scatters back are each looked at alone.
func TestScatterIntoGrowsWithTheGraph(t *testing.T) {
	allocated := func(layers int) int64 {
		var b strings.Builder
		b.WriteString("model ir=10 opset=20\ngraph g {\nin ids int64[4,1]\ninit zero float32[] = [0]\ninit shape int64[2] = [5, 3]\n")
		for i := range layers {
			b.WriteString(strings.ReplaceAll("in up# float32[4,3]\nin a# float32[5,3]\nz# = Expand(zero, shape)\ns# = ScatterND(z#, ids, up#) {reduction=\"add\"}\nd# = Neg(a#)\ng# = Add(d#, s#)\nout g# float32[5,3]\n", "#", fmt.Sprint(i)))
		}
		m, _ := ortest.Parse(t, b.String()+"}\n")
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		if n := rewrite.ScatterInto(m.Graph); n != layers {
			t.Fatalf("%d of %d sums taken", n, layers)
		}
		goruntime.ReadMemStats(&after)
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	few, many := allocated(24), allocated(192)
	if t.Logf("24 layers: %d bytes allocated on the way, 192: %d", few, many); many > 12*few {
		t.Errorf("24 layers: %d bytes allocated on the way, 192 layers: %d, more than twelve times as many", few, many)
	}
}
