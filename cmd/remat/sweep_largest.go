package main

// The largest size of a curve within the limit: a line through what is known says where
// to look, exact predictions say what is there.

import (
	"errors"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models"
)

// mostSearched bounds the predictions for one largest size.
const mostSearched = 40

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
	limit, lo, hi := w.o.limit, int64(0), int64(math.MaxInt64)
	for {
		for n, total := range known {
			if total <= limit {
				lo = max(lo, n)
			} else {
				hi = min(hi, n)
			}
		}
		if hi-lo <= 1 || l.Searched >= mostSearched {
			break
		}
		at := guess(known, lo, hi, limit, l.Searched)
		if at > mostSize {
			break
		}
		total, err := w.totalAt(first, doc.Over, at)
		if err != nil {
			if w.e.interrupted() != nil {
				return nil, errInterrupted
			}
			hi = at // a size that the model cannot have, such as more positions than it knows
			known[at] = math.MaxInt64
			continue
		}
		known[at] = total
		l.Searched++
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

// guess is a size strictly between lo, which fits, and hi, which does not: where the
// line through the two nearest sizes known meets the limit. After a few guesses that
// did not end it there is no line, and the range is halved.
func guess(known map[int64]int64, lo, hi, limit int64, asked int) int64 {
	const straight = 3
	var sizes []int64
	for n, total := range known {
		if total < math.MaxInt64 {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	at := lo * 2
	if hi < math.MaxInt64 {
		at = lo + (hi-lo)/2
	}
	if len(sizes) >= 2 && asked < straight {
		// The two that enclose the limit, or the two last.
		i := max(1, min(len(sizes)-1, slices.IndexFunc(sizes, func(n int64) bool { return known[n] > limit })))
		if known[sizes[len(sizes)-1]] <= limit {
			i = len(sizes) - 1
		}
		a, b := sizes[i-1], sizes[i]
		if known[b] <= limit { // beyond all that is known: the line through the whole
			a = sizes[0]
		}
		if slope := float64(known[b]-known[a]) / float64(b-a); slope > 0 {
			at = a + int64(math.Floor(float64(limit-known[a])/slope))
			if at == lo { // the line says that one more does not fit: see
				at = lo + 1
			}
		}
	}
	if hi < math.MaxInt64 {
		at = min(at, hi-1)
	}
	return max(at, lo+1)
}

// totalAt is what a step takes at another size of a curve, in bytes.
func (w *sweeper) totalAt(p *report.SweepPoint, over string, at int64) (int64, error) {
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
	points, err := w.planned(g, p.Precision, []string{p.Strategy}, w.best[p.Strategy+" "+p.Precision], func() {})
	w.o.measure = measure
	if err != nil {
		return 0, err
	}
	if points[0].TotalPeak == nil {
		return 0, errors.New(string(points[0].Why))
	}
	return *points[0].TotalPeak, nil
}
