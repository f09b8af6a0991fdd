package pipeline

import (
	"math"
	"testing"
)

// TestLargestWithin: the search for the largest size ends at it, for lines, for curves and for
// steps, within few predictions.
func TestLargestWithin(t *testing.T) {
	for name, total := range map[string]func(int64) int64{
		"line": func(n int64) int64 { return 1000 + 37*n }, "square": func(n int64) int64 { return 100 + n*n },
		"steps": func(n int64) int64 { return 1000 + 500*(n/16) }, "flat, then steep": func(n int64) int64 { return max(1000, 90*n) },
	} {
		for _, limit := range []int64{999, 1037, 2000, 9999, 123456} {
			known := map[int64]int64{1: total(1), 2: total(2), 4: total(4)}
			lo, _, asked, err := LargestWithin(known, limit, math.MaxInt64, func(n int64) (int64, error) { return total(n), nil })
			if err != nil {
				t.Fatal(err)
			}
			if lo > 0 && total(lo) > limit || total(lo+1) <= limit {
				t.Errorf("%s, %d: %d is not the largest", name, limit, lo)
			}
			if name == "line" && asked > 2 || asked > 30 {
				t.Errorf("%s, %d: %d predictions", name, limit, asked)
			}
		}
	}
}
