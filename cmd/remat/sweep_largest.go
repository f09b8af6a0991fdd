package main

// The largest size of a curve within the limit: a line through what is known says where
// to look, predictions of files as they stand where the limit is met, and predictions by
// what ONNX Runtime makes of them say what is there.

import (
	"errors"
	"maps"
	"math"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models"
	remat "github.com/onnx-remat/remat/runtime"
)

// searchLargest finds, for each curve, the largest size within the limit: what is
// between the largest known to fit and the least known not to is divided where the
// line through the points meets the limit.
func (w *sweeper) searchLargest(doc *report.Sweep) error {
	curves := doc.Curves()
	bar := w.e.progress(-1, "the largest that fits")
	defer bar.Finish()
	for _, c := range curves {
		l, err := w.largest(doc, c)
		if err != nil {
			return err
		}
		if l != nil {
			doc.Largest = append(doc.Largest, *l)
		}
	}
	return nil
}

// largest searches along one curve.
func (w *sweeper) largest(doc *report.Sweep, c report.SweepCurve) (*report.SweepLargest, error) {
	known := map[int64]int64{} // size -> total
	for _, p := range c.Points {
		if p.TotalPeak != nil && p.Outcome != report.SweepFailed {
			known[doc.At(p)] = *p.TotalPeak
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	first := c.Points[0]
	l := &report.SweepLargest{Model: first.Model, Strategy: c.Strategy, Over: doc.Over, Others: report.Text(c.Others)}
	by := func(engine *remat.Engine) func(at int64) (int64, error) {
		return func(at int64) (int64, error) {
			l.Searched++
			total, err := w.totalAt(engine, first, doc.Over, at)
			if err != nil && w.e.interrupted() == nil {
				return math.MaxInt64, nil // a size that the model cannot have, such as more positions than it knows
			}
			return total, err
		}
	}
	lo, hi, _, err := pipeline.LargestWithin(maps.Clone(known), w.o.limit, mostSize, by(nil))
	total := by(w.engine)
	for _, at := range []int64{lo, hi} { // which may be all that is to be known
		if _, ok := known[at]; err == nil && !ok && at > 0 && at < math.MaxInt64 {
			known[at], err = total(at)
		}
	}
	if err == nil {
		lo, hi, _, err = pipeline.LargestWithin(known, w.o.limit, mostSize, total)
	}
	if err != nil {
		return nil, errInterrupted
	}
	set := func(n int64) *int64 {
		if t, ok := known[n]; ok && t < math.MaxInt64 {
			return &t
		}
		return nil
	}
	l.Batch, l.Seq, l.Total, l.Next = first.Batch, first.Seq, set(lo), set(hi)
	if doc.Over == "seq" {
		l.Seq = &lo
	} else {
		l.Batch = lo
	}
	return l, nil
}

// totalAt is what a step takes at another size of a curve, in bytes; without an engine,
// as its file stands.
func (w *sweeper) totalAt(engine *remat.Engine, p *report.SweepPoint, over string, at int64) (int64, error) {
	size := sweepSize{model: p.Model, batch: p.Batch, accumulate: p.Accumulate}
	if p.Seq != nil {
		size.seq = *p.Seq
	}
	if _, err := models.Find(p.Model); err == nil && p.Layers != nil {
		size.layers = *p.Layers
	}
	if over == "seq" {
		size.seq = at
	} else {
		size.batch = at
	}
	g, err := w.graph(size)
	if err != nil {
		return 0, err
	}
	defer g.close()
	measure := w.o.measure
	w.o.measure = false
	points, err := w.planned(engine, g, p.Precision, []string{p.Strategy}, w.best[p.Strategy+" "+p.Precision], func() {})
	w.o.measure = measure
	if err != nil {
		return 0, err
	}
	if points[0].TotalPeak == nil {
		return 0, errors.New(string(points[0].Why))
	}
	return *points[0].TotalPeak, nil
}
