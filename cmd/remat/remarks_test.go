package main

import (
	"testing"

	"github.com/onnx-remat/remat/internal/report"
)

// TestGainsNothing: work for next to nothing is said, a saving and a little work are not.
func TestGainsNothing(t *testing.T) {
	for _, c := range []struct {
		overhead, saving report.Float
		want             string
	}{
		{0.175, 0, "sqrt computes 17.5 % again and saves 0.0 % of the peak: --strategy none is without that work"},
		{0.175, -0.2, "sqrt computes 17.5 % again and saves -20.0 % of the peak: --strategy none is without that work"},
		{0.175, 0.1, ""}, {0.002, 0, ""}, {0, 0, ""},
	} {
		if got := gainsNothing(&report.Plan{Strategy: "sqrt", Overhead: c.overhead, Saving: c.saving}); got != c.want {
			t.Errorf("overhead %v, saving %v: %q", c.overhead, c.saving, got)
		}
	}
}
