package main

// How far the results of two graphs are apart: every output that both have,
// and the scalar ones over all steps.

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/report"
	remat "github.com/onnx-remat/remat/runtime"
)

// compareFirst compares what each graph returns in its first step, while that
// lasts, with what the first graph returned in its own: that has to last until
// the others' first steps are done. Nothing is copied: gradients are as large as
// the parameters, and updated parameters are the parameters.
func compareFirst(subjects []*subject) []report.Difference {
	differences := make([]report.Difference, len(subjects))
	var kept []remat.Output
	loss := subjects[0].roles.Loss
	subjects[0].visit = func(outputs []remat.Output) { kept = outputs }
	for i, s := range subjects[1:] {
		s.visit = func(outputs []remat.Output) {
			if s.parts > 1 { // its loss is a part's; curves takes the mean
				outputs = slices.DeleteFunc(slices.Clone(outputs), func(o remat.Output) bool { return o.Name == loss })
			}
			differences[i+1] = difference(kept, outputs, loss)
		}
	}
	return differences
}

// gradients tells the outputs that the gradient difference is taken over: the
// gradients where a graph returns them; else AdamW's first moments, which are
// gradients but for a factor, as the updated parameters are not: AdamW makes a
// whole step of the least rounding where a gradient is zero; else everything.
func gradients(outputs []remat.Output) func(name string) bool {
	for _, suffix := range []string{".grad", ".m.new"} {
		is := func(name string) bool { return strings.HasSuffix(name, suffix) }
		if slices.ContainsFunc(outputs, func(o remat.Output) bool { return is(o.Name) }) {
			return is
		}
	}
	return func(string) bool { return true }
}

// difference compares the outputs that both graphs have.
func difference(a, b []remat.Output, loss string) report.Difference {
	outB := map[string]remat.Output{}
	for _, o := range b {
		outB[o.Name] = o
	}
	identical, any := true, false
	counts := gradients(a)
	var d report.Difference
	for _, x := range a {
		y, ok := outB[x.Name]
		if !ok || x.Err != nil || y.Err != nil {
			continue
		}
		any = true
		same := x.Type == y.Type && bytes.Equal(x.Data, y.Data)
		identical = identical && same
		if x.Name != loss && !counts(x.Name) {
			continue
		}
		if same {
			zero(&d, x.Name == loss)
			continue
		}
		most, scale, ok := spread(x.Tensor, y.Tensor)
		if !ok {
			continue
		}
		if _, scalar := x.Scalar(); x.Name == loss && scalar {
			raise(&d.Loss, most)
			continue
		}
		raise(&d.Gradient, most)
		raise(&d.RelativeGradient, relative(most, scale))
	}
	if any {
		d.BitIdentical = &identical
	}
	return d
}

// zero notes that one output is the same.
func zero(d *report.Difference, loss bool) {
	if loss {
		raise(&d.Loss, 0)
		return
	}
	raise(&d.Gradient, 0)
	raise(&d.RelativeGradient, 0)
}

// curves compares the scalar outputs of all steps, raises the difference of the
// loss to the largest, and reports whether they are the same.
func curves(a, b *subject, d *report.Difference) bool {
	same := true
	for i := range min(len(a.run.Steps), len(b.run.Steps)) {
		x, y := a.run.Steps[i].Outputs, b.run.Steps[i].Outputs
		for name, u := range x {
			v, ok := y[name]
			if !ok {
				continue
			}
			by := apart(float64(u), float64(v))
			same = same && by == 0
			if name == a.roles.Loss {
				raise(&d.Loss, by)
			}
		}
	}
	return same
}

func raise(to **report.Float, x float64) {
	if *to == nil || x > float64(**to) || math.IsNaN(x) {
		f := report.Float(x)
		*to = &f
	}
}

// apart is |x-y|, and 0 where both are the same infinity or both no number.
func apart(x, y float64) float64 {
	if x == y || math.IsNaN(x) && math.IsNaN(y) {
		return 0
	}
	return math.Abs(x - y)
}

// spread is the largest difference of two tensors and the largest magnitude of
// the first. A piece at a time: gradients are as large as the parameters.
func spread(x, y remat.Tensor) (most, scale float64, ok bool) {
	const piece = 1 << 20 // bytes, whole elements of every type
	size := x.Type.Size()
	if x.Type != y.Type || len(x.Data) != len(y.Data) || size == 0 {
		return 0, 0, false
	}
	part := func(t remat.Tensor, from, to int) ([]float64, error) {
		return remat.Tensor{Type: t.Type, Shape: []int64{int64(to-from) / size}, Data: t.Data[from:to]}.Float64s()
	}
	for from := 0; from < len(x.Data); from += piece {
		to := min(from+piece, len(x.Data))
		u, err1 := part(x, from, to)
		v, err2 := part(y, from, to)
		if err1 != nil || err2 != nil {
			return 0, 0, false
		}
		for i := range u {
			if d := apart(u[i], v[i]); d > most || math.IsNaN(d) {
				most = d
			}
			scale = max(scale, math.Abs(u[i]))
		}
	}
	return most, scale, true
}

// relative is the largest difference as a share of the tensor's own largest
// magnitude.
func relative(most, scale float64) float64 {
	switch {
	case most == 0:
		return 0
	case scale == 0:
		return math.Inf(1)
	}
	return most / scale
}
