package main

import (
	"math"
	"testing"
)

// TestGuess: the search for the largest size ends at it, for lines, for curves and for
// steps, within few predictions.
func TestGuess(t *testing.T) {
	for name, total := range map[string]func(int64) int64{
		"line": func(n int64) int64 { return 1000 + 37*n }, "square": func(n int64) int64 { return 100 + n*n },
		"steps": func(n int64) int64 { return 1000 + 500*(n/16) }, "flat, then steep": func(n int64) int64 { return max(1000, 90*n) },
	} {
		for _, limit := range []int64{999, 1037, 2000, 9999, 123456} {
			known := map[int64]int64{1: total(1), 2: total(2), 4: total(4)}
			lo, hi, asked := int64(0), int64(math.MaxInt64), 0
			for {
				for n, x := range known {
					if x <= limit {
						lo = max(lo, n)
					} else {
						hi = min(hi, n)
					}
				}
				if hi-lo <= 1 || asked > 60 {
					break
				}
				at := guess(known, lo, hi, limit, asked)
				if at <= lo || at >= hi {
					t.Fatalf("%s, %d: guess %d, not between %d and %d", name, limit, at, lo, hi)
				}
				known[at] = total(at)
				asked++
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
