package main

import (
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// TestDifference: what a difference is relative to, for each kind of graph, and
// which tensor is named as the worst.
func TestDifference(t *testing.T) {
	out := func(name string, values ...float64) remat.Output {
		data, err := onnx.FloatTensor(onnx.Float32, values, int64(len(values))).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return remat.Output{Name: name, Tensor: remat.Tensor{Type: onnx.Float32, Shape: []int64{int64(len(values))}, Data: data}}
	}
	loss := func(x float64) remat.Output {
		o := out("loss", x)
		o.Shape = nil
		return o
	}
	all := func(string) bool { return true }
	w := float64(math.Nextafter32(0.5, 1))
	for _, c := range []struct {
		name       string
		m          measure
		a, b       []remat.Output
		by, of     float64 // of: 0 for none
		worst      report.Text
		difference float64
		loss       float64
	}{
		{name: "a gradient that is rounding", m: measure{counts: all},
			a: []remat.Output{loss(4), out("w.grad", 0.5, -2), out("b.grad", 1e-9)}, b: []remat.Output{loss(5), out("w.grad", 0.5, -2), out("b.grad", -1e-9)},
			difference: 2e-9, by: 1e-9, of: 2, worst: "b.grad", loss: 0.25},
		{name: "a small loss", m: measure{counts: all}, a: []remat.Output{loss(1e-9), out("w.grad", 1)}, b: []remat.Output{loss(-1e-9), out("w.grad", 1)}, loss: 2e-9},
		{name: "updates", m: measure{counts: all, before: map[string]remat.Tensor{"w.new": out("", 0.5, 0.25).Tensor}},
			a: []remat.Output{out("w.new", 0.5, 0.125)}, b: []remat.Output{out("w.new", 0.5, 0.25)},
			difference: 0.125, by: 1, of: 0.125, worst: "w.new"},
		{name: "a unit in the last place of a weight", m: measure{counts: all, before: map[string]remat.Tensor{"w.new": out("", 0.5000001).Tensor}},
			a: []remat.Output{out("w.new", 0.5)}, b: []remat.Output{out("w.new", w)},
			difference: w - 0.5, by: 0, of: 0x1p-23, worst: "w.new"},
		{name: "outputs with nothing in common", m: measure{counts: all, each: true},
			a: []remat.Output{out("y", 100), out("z", 1)}, b: []remat.Output{out("y", 101), out("z", 1.5)}, difference: 1, by: 0.5, worst: "z"},
		{name: "no number", m: measure{counts: all}, a: []remat.Output{out("w.grad", 1), out("v.grad", 1)}, b: []remat.Output{out("w.grad", math.NaN()), out("v.grad", 3)},
			difference: math.NaN(), by: math.NaN(), of: 1, worst: "w.grad"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := c.m.difference(c.a, c.b, "loss")
			check := func(what string, got *report.Float, want float64) {
				t.Helper()
				x := 0.0
				if got != nil {
					x = float64(*got)
				}
				if math.IsNaN(x) != math.IsNaN(want) || math.Abs(x-want) > 1e-6*math.Abs(want) {
					t.Errorf("%s: %v, want %v", what, x, want)
				}
			}
			check("difference", d.Gradient, c.difference)
			check("relative", d.RelativeGradient, c.by)
			check("largest", d.LargestGradient, c.of)
			check("loss", d.RelativeLoss, c.loss)
			if d.WorstGradient != c.worst {
				t.Errorf("worst %q, want %q", d.WorstGradient, c.worst)
			}
		})
	}
}
