package predict

import (
	"fmt"
	"testing"
)

// TestScratchOfOneSize: where a kernel borrows buffers of one size in turn, the prediction
// knows which of them it gives back; else a slab has the next one where another lies.
func TestScratchOfOneSize(t *testing.T) {
	for _, c := range []string{
		"Sum(a, b, c, d, e)", "Max(a, b, c, d, e)", "Min(a, b, c, d, e)", "Mean(a, b, c, d, e)",
		`Einsum(a, b, c, d) {equation="ij,jk,kl,lm->im"}`,
	} {
		p, got := predictedAndMeasured(t, fmt.Sprintf(`model ir=10 opset=20
graph g {
in a float32[16,16]
in b float32[16,16]
in c float32[16,16]
in d float32[16,16]
in e float32[16,16]
x = %s
y = Add(x, e)
out y float32[16,16]
}
`, c), nil)
		var want, blocks []int // each request: its block's number, below 0 where it is released
		for _, r := range p.Trace.Requests() {
			want = append(want, numbered(r.ID, r.Alloc))
		}
		number := map[uint64]int{}
		for _, e := range got.events {
			if e.Alloc {
				number[e.ID] = len(number)
			}
			blocks = append(blocks, numbered(number[e.ID], e.Alloc))
		}
		if fmt.Sprint(want) != fmt.Sprint(blocks) {
			t.Errorf("%s: blocks %v, predicted %v", c, blocks, want)
		}
	}
}

func numbered(k int, alloc bool) int {
	if alloc {
		return k + 1
	}
	return -k - 1
}
