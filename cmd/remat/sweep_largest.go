package main

// The largest size of a curve within the limit: a line through what is known says where
// to look, predictions of files as they stand where the limit is met, and predictions by
// what ONNX Runtime makes of them say what is there.

import (
	"maps"
	"math"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/planner"
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
	first := c.Points[0]
	s := &sizeSearch{w: w, point: first, over: doc.Over, like: w.best[first.Strategy+" "+first.Precision], known: map[int64]int64{}}
	s.limit = w.o.limit
	defer s.drop()
	for _, p := range c.Points {
		if p.TotalPeak != nil && p.Outcome != report.SweepFailed {
			s.known[doc.At(p)] = *p.TotalPeak
		}
	}
	if len(s.known) == 0 {
		return nil, nil
	}
	lo, hi, err := s.largest()
	if err != nil {
		return nil, errInterrupted
	}
	set := func(n int64) *int64 {
		if t, ok := s.known[n]; ok && t < math.MaxInt64 {
			return &t
		}
		return nil
	}
	l := &report.SweepLargest{Model: first.Model, Strategy: c.Strategy, Over: doc.Over, Others: report.Text(c.Others), Searched: s.asked,
		Batch: first.Batch, Seq: first.Seq, Total: set(lo), Next: set(hi)}
	if doc.Over == "seq" {
		l.Seq = &lo
	} else {
		l.Batch = lo
	}
	return l, nil
}

// A sizeSearch looks for the largest size of a curve.
type sizeSearch struct {
	w     *sweeper
	point *report.SweepPoint // of the curve
	over  string
	// like is how graphs are divided: as was best at the last size that was looked at in
	// full.
	like  *pipeline.Divisions
	known map[int64]int64 // totals by size, as ONNX Runtime runs them
	asked int
	closeFiles
}

// largest returns the largest size that fits, and the least known not to.
func (s *sizeSearch) largest() (lo, hi int64, err error) {
	for {
		lo, hi, _, err = pipeline.LargestWithin(maps.Clone(s.known), s.limit, mostSize, s.asItStands)
		for _, at := range []int64{lo, hi} { // which may be all that is to be known
			if _, ok := s.known[at]; err == nil && !ok && at > 0 && at < math.MaxInt64 {
				s.known[at], err = s.asItRuns(at)
			}
		}
		if err == nil {
			lo, hi, _, err = pipeline.LargestWithin(s.known, s.limit, mostSize, s.asItRuns)
		}
		if err != nil {
			return 0, 0, err
		}
		again, err := s.otherwise(hi)
		if err != nil || !again {
			return lo, hi, err
		}
	}
}

// otherwise reports that a size which does not fit does if its graph is divided in
// another way; the search is to go on with that.
func (s *sizeSearch) otherwise(size int64) (bool, error) {
	solver, _, err := planner.Find(sweptAs(s.point.Strategy))
	if err != nil || solver.Frontier == nil || s.like == nil || s.known[size] == math.MaxInt64 || size == math.MaxInt64 {
		return false, err
	}
	like := s.like
	s.like = nil
	f, err := s.fileAt(size)
	s.like = like
	if err != nil {
		return false, s.w.e.interrupted()
	}
	defer f.drop()
	s.asked++
	if f.Prediction.TotalPeak > s.limit {
		return false, nil
	}
	file, err := f.planner.Finish(s.w.engine, f.File)
	if err != nil {
		return false, err
	}
	if file.Prediction.TotalPeak > s.limit {
		return false, nil
	}
	s.known[size] = file.Prediction.TotalPeak
	s.like = new(file.Variant.Options.Divisions)
	s.drop()
	return true, nil
}

// asItStands is the total of a size's file without ONNX Runtime's optimizer.
func (s *sizeSearch) asItStands(at int64) (int64, error) {
	return s.total(at, func(f *sizedFile) (int64, error) { return f.Prediction.TotalPeak, nil })
}

// asItRuns is the total of a size's file as ONNX Runtime runs it.
func (s *sizeSearch) asItRuns(at int64) (int64, error) {
	return s.total(at, func(f *sizedFile) (int64, error) {
		file, err := f.planner.Finish(s.w.engine, f.File)
		if err != nil {
			return 0, err
		}
		return file.Prediction.TotalPeak, nil
	})
}

// total is that of a size, math.MaxInt64 for one that the model cannot have, such as more
// positions than it knows.
func (s *sizeSearch) total(at int64, of func(*sizedFile) (int64, error)) (n int64, err error) {
	s.asked++
	f := s.at(at)
	if f == nil {
		f, err = s.fileAt(at)
	}
	if err == nil {
		n, err = of(f)
	}
	if err != nil {
		if s.w.e.interrupted() != nil {
			return 0, err
		}
		n = math.MaxInt64
	}
	s.keep(at, n, f)
	return n, nil
}

// A sizedFile is the file of a size as it stands.
type sizedFile struct {
	*pipeline.File
	graph   *sizedGraph
	planner *pipeline.Planner
}

func (f *sizedFile) drop() {
	if f != nil {
		f.graph.close()
	}
}

// closeFiles keeps the files on both sides of a limit, by size.
type closeFiles struct {
	limit       int64
	below, over *sizedFile
	lo, hi      int64
}

func (c *closeFiles) at(size int64) *sizedFile {
	switch {
	case c.below != nil && c.lo == size:
		return c.below
	case c.over != nil && c.hi == size:
		return c.over
	}
	return nil
}

func (c *closeFiles) keep(size, total int64, f *sizedFile) {
	switch {
	case f == nil || f == c.below || f == c.over:
	case total <= c.limit && (c.below == nil || size > c.lo):
		c.below.drop()
		c.below, c.lo = f, size
	case total > c.limit && (c.over == nil || size < c.hi):
		c.over.drop()
		c.over, c.hi = f, size
	default:
		f.drop()
	}
}

func (c *closeFiles) drop() {
	c.below.drop()
	c.over.drop()
	c.below, c.over = nil, nil
}

// fileAt plans another size of the curve.
func (s *sizeSearch) fileAt(at int64) (*sizedFile, error) {
	w, p := s.w, s.point
	size := sweepSize{model: p.Model, batch: p.Batch, accumulate: p.Accumulate}
	if p.Seq != nil {
		size.seq = *p.Seq
	}
	if _, err := models.Find(p.Model); err == nil && p.Layers != nil {
		size.layers = *p.Layers
	}
	if s.over == "seq" {
		size.seq = at
	} else {
		size.batch = at
	}
	g, err := w.graph(size)
	if err != nil {
		return nil, err
	}
	f := &sizedFile{graph: g}
	half, err := w.half(p.Precision, p.Strategy)
	if err == nil {
		f.planner, err = w.planner(nil, g, half, s.like)
	}
	if err == nil {
		f.File, err = f.planner.PlanWithin(sweptAs(p.Strategy), pipeline.Budget{})
	}
	if err != nil {
		f.drop()
		return nil, err
	}
	return f, nil
}
