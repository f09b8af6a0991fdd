package main

// The points of a sweep: a training graph for each size, a planner for each type to
// compute in, a file for each strategy.

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A sweeper makes points.
type sweeper struct {
	e      *env
	o      sweepOptions
	dir    string // for the files of built-in models
	engine *remat.Engine
	// best is how the last point of each strategy and precision was divided: the search
	// for the largest size looks at that alone.
	best map[string]*pipeline.Options
}

func newSweeper(e *env, o sweepOptions) (*sweeper, error) {
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	dir, err := ort.TemporaryDir("remat-sweep-")
	if err != nil {
		return nil, err
	}
	return &sweeper{e: e, o: o, dir: dir, engine: engine, best: map[string]*pipeline.Options{}}, nil
}

func (w *sweeper) close() { _ = ort.DropTemporary(w.dir) }

// A sized graph is the training graph of one size, ready to be planned.
type sizedGraph struct {
	size   sweepSize
	source *pipeline.Source
	dims   map[string]int64
	config *models.Config // of a built-in model
	point  report.SweepPoint
}

// points predicts every precision and strategy of one size. What is wrong with the
// size itself, as with a batch that the model cannot have, is an error; what is wrong
// with one point is that point's outcome.
func (w *sweeper) points(size sweepSize, done func()) ([]report.SweepPoint, error) {
	g, err := w.graph(size)
	if err != nil {
		return nil, err
	}
	defer g.close()
	var list []report.SweepPoint
	for _, p := range w.o.precisions {
		made, err := w.planned(g, p, w.o.strategies, nil, done)
		if err != nil {
			return nil, err
		}
		list = append(list, made...)
	}
	return list, nil
}

func (g *sizedGraph) close() { g.source.Close() }

// planned predicts one precision of a size; like, unless nil, is the only variant that
// divides that a search looks at.
func (w *sweeper) planned(g *sizedGraph, precisionName string, strategies []string, like *pipeline.Options, done func()) ([]report.SweepPoint, error) {
	o := w.e.pipelineOptions()
	o.Like = like
	o.Normalize, o.Dims = pipeline.Auto, g.dims
	o.Stop = func() bool { return w.e.ctx.Err() != nil }
	half, err := pipeline.ParseHalf(precisionName)
	if err != nil {
		return nil, err
	}
	var list []report.SweepPoint
	var p *pipeline.Planner
	for _, strategy := range strategies {
		if half != onnx.Undefined {
			early := strategy == "none"
			if o.Precision == nil || o.Precision.Early != early {
				o.Precision, p = &precision.Options{To: half, Provider: kernels.CPU, Early: early}, nil
				if w.e.provider == "cuda" {
					o.Precision.Provider = kernels.CUDA
				}
			}
		}
		if p == nil {
			given, err := g.source.Sized(g.dims)
			if err == nil {
				p, err = pipeline.NewPlanner(w.engine, given, o)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", g.size.model, err)
			}
		}
		file, err := p.PlanWithin(strategy, pipeline.Budget{})
		if err := w.e.interrupted(); err != nil {
			return nil, err
		}
		point := g.point
		point.Precision, point.Strategy = precisionName, strategy
		if err != nil {
			point.Outcome, point.Why = report.SweepFailed, report.Text(err.Error())
		} else {
			w.describe(&point, p, file)
			o := &file.Variant.Options
			w.best[strategy+" "+precisionName] = &pipeline.Options{Chunk: o.Chunk, Tile: o.Tile, Rows: o.Rows}
			if w.o.measure && point.Outcome == report.SweepOK {
				if err := w.measure(&point, g, p, file); err != nil {
					return nil, err
				}
			}
		}
		list = append(list, point)
		done()
	}
	return list, nil
}

// describe fills in what is predicted of a file.
func (w *sweeper) describe(point *report.SweepPoint, p *pipeline.Planner, file *pipeline.File) {
	total := pipeline.TotalOf(file.Prediction)
	document := p.Document(file, pipeline.Budget{})
	sum, peak, live := total.Bytes(), file.Prediction.TotalPeak, file.Peak
	point.LivePeak, point.TotalPeak, point.Total = &live, &peak, &sum
	point.PerSample = new(sum / max(point.Batch, 1))
	point.Overhead = new(document.Overhead)
	point.Saving, point.TheorySaving = new(document.Saving), document.TheorySaving
	point.Outcome, point.Fits = report.SweepOK, true
	if w.o.limit > 0 && sum > w.o.limit {
		point.Outcome, point.Fits = report.SweepOOM, false
		point.Why = report.Text(fmt.Sprintf("needs %s, limit %s", report.Bytes(sum), report.Bytes(w.o.limit)))
	}
	if !total.Exact {
		point.Why = report.Text("at least: " + file.Prediction.Unknown[0])
	}
}

// measure runs two steps of a file; what has no room is an outcome.
func (w *sweeper) measure(point *report.SweepPoint, g *sizedGraph, p *pipeline.Planner, file *pipeline.File) error {
	out := filepath.Join(filepath.Dir(g.source.Path), "measure.onnx")
	if err := file.Save(g.source, out, p.Document(file, pipeline.Budget{})); err != nil {
		return err
	}
	defer os.Remove(out)
	feeds := remat.Options{Level: w.e.opt, Threads: w.e.threads, Provider: ort.Provider(w.e.provider), Device: w.e.device, LR: demoOwnRate}
	delete(w.e.sources, out)
	s, err := openSubject(w.e, out, feeds)
	if err == nil {
		defer s.close()
		for range 2 {
			if err = s.step(w.e); err != nil {
				break
			}
		}
	}
	delete(w.e.sources, out)
	if err != nil {
		if !outOfMemory(err) {
			return err
		}
		point.Outcome, point.Fits, point.Why = report.SweepOOM, false, report.Text(err.Error())
		return nil
	}
	m := s.session.Memory()
	point.MeasuredLivePeak = &m.LivePeakBytes
	point.Seconds = s.run.Steps[len(s.run.Steps)-1].Seconds
	return nil
}

// graph makes the training graph of a size.
func (w *sweeper) graph(size sweepSize) (*sizedGraph, error) {
	row, err := models.Find(size.model)
	if err == nil {
		return w.builtIn(size, row)
	}
	if _, ferr := os.Stat(size.model); ferr != nil && !strings.Contains(size.model, ".") {
		return nil, err // a name rather than a file
	}
	return w.foreign(size)
}

// builtIn makes the training graph of a model of the zoo.
func (w *sweeper) builtIn(size sweepSize, row models.Row) (*sizedGraph, error) {
	c := row.Default
	for _, f := range []struct {
		flag string
		n    int64
		to   *int64
	}{{"layers", size.layers, &c.Layers}, {"seq", size.seq, &c.Seq}, {"batch", size.batch, &c.Batch}} {
		if f.n == 0 {
			continue
		}
		if *f.to == 0 {
			return nil, fmt.Errorf("model %s has no --%s", row.Name, f.flag)
		}
		*f.to = f.n
	}
	built, err := row.Build(c)
	if err != nil {
		return nil, err
	}
	if err := built.Describe(); err != nil {
		return nil, err
	}
	path := filepath.Join(w.dir, "m.onnx")
	if err := built.Model.Save(path); err != nil {
		return nil, err
	}
	g := &sizedGraph{size: size, config: &c, point: report.SweepPoint{Model: row.Name, Batch: c.Batch, Layers: &c.Layers, Accumulate: max(size.accumulate, 1)}}
	if c.Seq > 0 {
		g.point.Seq = &c.Seq
	}
	src, err := pipeline.Load(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	g.source, err = w.derive(src, w.e.dims, max(size.accumulate, 1), filepath.Join(w.dir, "t.onnx"))
	return g, err
}

// derive writes the training graph of a forward model, and reads it again.
func (w *sweeper) derive(src *pipeline.Source, dims map[string]int64, accumulate int64, out string) (*pipeline.Source, error) {
	update := optim.Defaults(w.o.optimizer)
	if accumulate > 1 {
		update.Accumulate = accumulate
	}
	d, err := src.Derive(pipeline.DeriveOptions{Grad: grad.Options{Dims: dims, Dialect: grad.DialectONNX}, Update: update})
	var unclear *pipeline.UnclearError
	if errors.As(err, &unclear) {
		err = fmt.Errorf("%w: derive it with remat grad --params or --frozen, and sweep what that writes", err)
	}
	if err == nil {
		err = d.Save(out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Path, err)
	}
	return pipeline.Load(out)
}

// foreign makes the training graph of a file at a size.
func (w *sweeper) foreign(size sweepSize) (*sizedGraph, error) {
	if size.layers > 0 {
		return nil, fmt.Errorf("--layers applies only to built-in models, not to %s", size.model)
	}
	src, err := pipeline.Load(size.model)
	if err != nil {
		return nil, err
	}
	g := &sizedGraph{size: size, source: src, dims: map[string]int64{}}
	free := pipeline.FreeDims(src.Model)
	for name, n := range w.e.dims {
		g.dims[name] = n
	}
	for _, f := range []struct {
		flag  string
		n     int64
		names []string
	}{{"batch", size.batch, []string{"batch", "batch_size", "n"}}, {"seq", size.seq, []string{"seq", "sequence", "seq_len", "sequence_length", "length", "tokens", "t"}}} {
		if f.n == 0 {
			continue
		}
		name := freeDim(free, f.names)
		if name == "" {
			src.Close()
			return nil, fmt.Errorf("%s: no free %s dimension (free: %s): export it with dynamic shapes, or give the name of a built-in model", size.model, f.flag, someOr(free, "none"))
		}
		g.dims[name] = f.n
	}
	g.point = report.SweepPoint{Model: size.model, Batch: size.batch, Accumulate: max(size.accumulate, 1)}
	if n, ok := g.dims[freeDim(free, []string{"batch", "batch_size", "n"})]; ok && g.point.Batch == 0 {
		g.point.Batch = n
	}
	if size.seq > 0 {
		g.point.Seq = &g.size.seq
	}
	if roles, _, err := step.RolesOf(src.Model, nil); err == nil && roles.Training() {
		if w.o.optimizer != optim.None || size.accumulate > 1 {
			src.Close()
			return nil, fmt.Errorf("%s: already a training graph: leave --optimizer and --accumulate out, or sweep the forward model", size.model)
		}
		return g, nil
	}
	defer src.Close()
	// Weights are referred to: the graph has to lie beside them.
	beside := strings.TrimSuffix(size.model, filepath.Ext(size.model)) + ".remat-sweep.onnx"
	g.source, err = w.derive(src, g.dims, max(size.accumulate, 1), beside)
	os.Remove(beside)
	os.Remove(strings.TrimSuffix(beside, ".onnx") + ".safetensors")
	g.dims = nil // the derived graph has their numbers
	return g, err
}

// freeDim finds the dimension of one of the names, in whatever case; "" for none.
func freeDim(free, names []string) string {
	for _, want := range names {
		for _, name := range free {
			if strings.EqualFold(name, want) {
				return name
			}
		}
	}
	return ""
}

func someOr(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return some(names)
}

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
		if p.Total != nil && p.Outcome != report.SweepFailed {
			known[doc.At(p)] = *p.Total
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
	if points[0].Total == nil {
		return 0, errors.New(string(points[0].Why))
	}
	return *points[0].Total, nil
}
