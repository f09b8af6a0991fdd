package main

// How far the results of two graphs are apart: every output that both have,
// and the scalar ones over all steps.

import (
	"bytes"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// compareFirst compares what each graph returns in its first step, while that
// lasts, with what the first graph returned in its own: that has to last until
// the others' first steps are done. Nothing is copied: gradients are as large as
// the parameters, and updated parameters are the parameters; but where parameters
// are all that comes back, what they were is.
func compareFirst(subjects []*subject) ([]report.Difference, error) {
	differences := make([]report.Difference, len(subjects))
	if subjects[0].session == nil { // nothing to compare with
		return differences, nil
	}
	m, err := measureOf(subjects[0])
	if err != nil {
		return nil, err
	}
	var kept []remat.Output
	loss := subjects[0].roles.Loss
	for _, s := range subjects {
		if err := s.beginBeside(subjects[0]); err != nil {
			return nil, err
		}
	}
	subjects[0].visit = func(outputs []remat.Output) { // the others' steps need their places
		for _, o := range outputs {
			kept = append(kept, o.Copy())
		}
	}
	for i, s := range subjects[1:] {
		s.visit = func(outputs []remat.Output) {
			if s.parts > 1 { // its loss is a part's; curves takes the mean
				outputs = slices.DeleteFunc(slices.Clone(outputs), func(o remat.Output) bool { return o.Name == loss })
			}
			differences[i+1] = m.difference(kept, outputs, loss)
		}
	}
	return differences, nil
}

// A measure says which outputs the gradient difference is taken over and what it
// is relative to. A tensor's own magnitude is no scale: a gradient that is zero
// but for rounding, as that of a bias before a softmax, would differ by all of it.
type measure struct {
	counts func(name string) bool
	// before holds the values that outputs replace, by output: the scale is then the
	// largest update, and a unit in the last place of a value, which may be a good
	// share of its update, is no difference. Nil: the scale is the largest magnitude of
	// all that count.
	before map[string]remat.Tensor
	// each: outputs have nothing in common, so each has its own magnitude for scale.
	each bool
}

// measureOf chooses the first of these that the graph returns: gradients; AdamW's
// first moments, which are gradients but for a factor, as the updated parameters
// are not: AdamW makes a whole step of the least rounding where a gradient is zero;
// updated values, whose differences are relative to the largest update; else
// everything.
func measureOf(s *subject) (measure, error) {
	grads, updated := map[string]bool{}, map[string]bool{}
	for _, out := range s.roles.Grad {
		grads[out] = true
	}
	for _, out := range s.roles.New {
		updated[out] = true
	}
	for _, set := range []map[string]bool{grads, s.moments} {
		if len(set) > 0 {
			return measure{counts: func(name string) bool { return set[name] }}, nil
		}
	}
	if len(updated) == 0 {
		return measure{counts: func(string) bool { return true }, each: true}, nil
	}
	m := measure{counts: func(name string) bool { return updated[name] }, before: map[string]remat.Tensor{}}
	for in, out := range s.roles.New { // the step writes over them
		t, ok, err := s.session.Input(in)
		if err != nil {
			return m, err
		}
		if ok {
			m.before[out] = t
		}
	}
	return m, nil
}

// difference compares the outputs that both graphs have.
func (m *measure) difference(a, b []remat.Output, loss string) report.Difference {
	outB := map[string]remat.Output{}
	for _, o := range b {
		outB[o.Name] = o
	}
	identical, any := true, false
	var d report.Difference
	var counted []remat.Output
	for _, x := range a {
		y, ok := outB[x.Name]
		if !ok || x.Err != nil || y.Err != nil {
			continue
		}
		any = true
		same := x.Type == y.Type && bytes.Equal(x.Data, y.Data)
		identical = identical && same
		switch {
		case x.Name == loss:
			raiseLoss(&d, x, y, same)
		case m.counts(x.Name):
			counted = append(counted, x)
			m.raise(&d, x, y, same)
		}
	}
	if d.Gradient != nil && !m.each {
		m.relate(&d, counted)
	}
	if any {
		d.BitIdentical = &identical
	}
	return d
}

// raise notes how far one output is apart.
func (m *measure) raise(d *report.Difference, x, y remat.Output, same bool) {
	if same {
		raise(&d.Gradient, 0)
		if m.each {
			raise(&d.RelativeGradient, 0)
		}
		return
	}
	most, own, ok := spread(x.Tensor, y.Tensor, 0)
	if !ok {
		return
	}
	switch {
	case m.before != nil: // relate makes it a share
		beyond, _, _ := spread(x.Tensor, y.Tensor, lastPlace(x.Type))
		if raise(&d.RelativeGradient, beyond) && most != 0 {
			d.WorstGradient = report.Text(x.Name)
		}
		raise(&d.Gradient, most)
	case m.each:
		if raise(&d.RelativeGradient, relative(most, own)) && most != 0 {
			d.WorstGradient = report.Text(x.Name)
		}
		raise(&d.Gradient, most)
	default:
		if raise(&d.Gradient, most) && most != 0 {
			d.WorstGradient = report.Text(x.Name)
		}
	}
}

// relate sets the largest difference against the largest gradient, or update, of
// the first graph; where nothing differs, that is not sought.
func (m *measure) relate(d *report.Difference, counted []remat.Output) {
	if *d.Gradient == 0 {
		raise(&d.RelativeGradient, 0)
		return
	}
	most, scale := *d.Gradient, 0.0
	for _, x := range counted {
		old, own, ok := x.Tensor, 0.0, true
		if m.before == nil {
			_, own, ok = spread(old, old, 0)
		} else if old, ok = m.before[x.Name]; ok {
			own, _, ok = spread(old, x.Tensor, 0)
		}
		if ok {
			scale = max(scale, own)
		}
	}
	if m.before != nil && d.RelativeGradient != nil {
		most, d.RelativeGradient = *d.RelativeGradient, nil
	}
	raise(&d.LargestGradient, scale)
	raise(&d.RelativeGradient, relative(float64(most), scale))
}

// raiseLoss notes how far the loss of two graphs is apart.
func raiseLoss(d *report.Difference, x, y remat.Output, same bool) {
	u, scalar := x.Scalar()
	v, _ := y.Scalar()
	switch {
	case same:
		raise(&d.Loss, 0)
		raise(&d.RelativeLoss, 0)
	case scalar:
		raise(&d.Loss, apart(u, v))
		raise(&d.RelativeLoss, relativeLoss(u, v))
	}
}

// relativeLoss is the difference of two losses as a share of the first, or of 1
// where that is larger: a policy's loss starts at a zero that is rounding.
func relativeLoss(x, y float64) float64 {
	by := apart(x, y)
	if by == 0 {
		return 0
	}
	return by / max(math.Abs(x), 1)
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
				raise(&d.RelativeLoss, relativeLoss(float64(u), float64(v)))
			}
		}
	}
	return same
}

// raise notes x if it is the largest so far, and reports that.
func raise(to **report.Float, x float64) bool {
	if *to != nil && !(x > float64(**to)) && (!math.IsNaN(x) || math.IsNaN(float64(**to))) {
		return false
	}
	*to = new(report.Float(x))
	return true
}

// apart is |x-y|, and 0 where both are the same infinity or both no number.
func apart(x, y float64) float64 {
	if x == y || math.IsNaN(x) && math.IsNaN(y) {
		return 0
	}
	return math.Abs(x - y)
}

// lastPlace is the share of a number that one unit in the last place of its type
// is at most, 0 for integers.
func lastPlace(t onnx.DType) float64 {
	switch t {
	case onnx.Float64:
		return 0x1p-52
	case onnx.Float32:
		return 0x1p-23
	case onnx.Float16:
		return 0x1p-10
	case onnx.BFloat16:
		return 0x1p-7
	}
	return 0
}

// spread is the largest difference of two tensors, less that share of the value,
// and the largest magnitude of the first. A piece at a time: gradients are as large
// as the parameters.
func spread(x, y remat.Tensor, slack float64) (most, scale float64, ok bool) {
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
			if d := apart(u[i], v[i]) - slack*math.Abs(u[i]); d > most || math.IsNaN(d) {
				most = d
			}
			scale = max(scale, math.Abs(u[i]))
		}
	}
	return most, scale, true
}

// relative is the largest difference as a share of a scale.
func relative(most, scale float64) float64 {
	switch {
	case most == 0:
		return 0
	case scale == 0:
		return math.Inf(1)
	}
	return most / scale
}
