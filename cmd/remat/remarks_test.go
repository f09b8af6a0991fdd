package main

import (
	"testing"

	"github.com/onnx-remat/remat/internal/report"
)

// TestGainsNothing: work for next to nothing is said, a saving and a little work are not.
func TestGainsNothing(t *testing.T) {
	for _, c := range []struct {
		overhead, saving report.Float
		parts            float64
		want             string
	}{
		{0.175, 0, 0, "sqrt computes 17.5 % again and saves 0.0 % of the peak: --strategy none is without that work"},
		{0.175, -0.2, 0.05, "sqrt computes 17.5 % again and raises the peak by 20.0 %: --strategy none is without that work"},
		{0.175, -0.2, 0.15, "computing in parts adds 17.5 % of work and raises the peak by 20.0 %: leave out --micro-batches and --tile"},
		{0.175, 0.1, 0.175, ""}, {0.002, 0, 0, ""}, {0, 0, 0, ""},
	} {
		if got := gainsNothing(&report.Plan{Strategy: "sqrt", Overhead: c.overhead, Saving: c.saving}, c.parts, []string{"--micro-batches", "--tile"}); got != c.want {
			t.Errorf("overhead %v, saving %v: %q", c.overhead, c.saving, got)
		}
	}
}
