package report

import (
	"bytes"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPNG(t *testing.T) {
	c := fixtureCompare()
	for name, write := range map[string]func(io.Writer) error{
		"timeline": c.TimelinePNG, "compare": c.ComparePNG, "overview": c.OverviewPNG,
		"pareto":  func(w io.Writer) error { return ParetoPNG(w, c.Models[1].Plan.Pareto) },
		"hostile": fixtureHostile().OverviewPNG,
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			if dir := os.Getenv("REMAT_SCREENSHOTS"); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, "png-"+name+".png"), b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			img, err := png.Decode(&b)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[color.Color]int{}
			for y := range img.Bounds().Dy() {
				for x := range img.Bounds().Dx() {
					seen[color.RGBAModel.Convert(img.At(x, y))]++
				}
			}
			if img.Bounds().Dx() != 1400 || seen[inks[1]] < 100 {
				t.Errorf("%v, %d pixels of the second variant's colour", img.Bounds(), seen[inks[1]])
			}
		})
	}
}

func TestPNGOfNothing(t *testing.T) {
	empty := &Compare{Models: []*Run{{}}}
	for _, err := range []error{empty.TimelinePNG(io.Discard), empty.ComparePNG(io.Discard), empty.OverviewPNG(io.Discard), ParetoPNG(io.Discard, nil)} {
		if err == nil {
			t.Error("a picture of nothing was written")
		}
	}
	one := []ParetoPoint{{Strategy: "only", PeakBytes: 1 << 20}}
	if err := ParetoPNG(io.Discard, one); err != nil {
		t.Error(err)
	}
}

// TestShortShare: an axis that begins a rounding error below zero begins at 0.
func TestShortShare(t *testing.T) {
	for x, want := range map[float64]string{-1e-17: "0 %", 0: "0 %", 0.2: "20 %", -0.05: "-5 %", 1: "100 %"} {
		if got := shortShare(x); got != want {
			t.Errorf("shortShare(%g) = %q, want %q", x, got, want)
		}
	}
}

// TestStrategyNames: many plans of one strategy get one name, at the plan itself or the
// one of most overhead; strategies that meet share a place.
func TestStrategyNames(t *testing.T) {
	got := strategyNames([]ParetoPoint{
		{Strategy: "optimal", PeakBytes: 10, Overhead: 0.3}, {Strategy: "optimal", PeakBytes: 20, Overhead: 0.1},
		{Strategy: "sqrt", PeakBytes: 30, Overhead: 0.2}, {Strategy: "full", PeakBytes: 30, Overhead: 0.2},
		{Strategy: "none", PeakBytes: 40, Overhead: 0}, {Strategy: "odd", PeakBytes: 40, Overhead: Float(math.NaN())},
	})
	want := []string{"optimal", "sqrt, full", "none"}
	if !slices.Equal(got.Labels, want) || got.XYs[0].X != 0.3 {
		t.Errorf("%v at %v, want %v", got.Labels, got.XYs, want)
	}
	knee := ParetoPoint{Strategy: "optimal", PeakBytes: 20, Overhead: 0.1, Chosen: true}
	for i, points := range [][]ParetoPoint{{knee, {Strategy: "optimal", PeakBytes: 10, Overhead: 0.3}}, {{Strategy: "optimal", PeakBytes: 10, Overhead: 0.3}, knee}} {
		if got := strategyNames(points); len(got.XYs) != 1 || got.XYs[0].X != 0.1 {
			t.Errorf("%d: the plan itself is named at %v", i, got.XYs)
		}
	}
}
