package main

// The points of a sweep: a training graph for each size, a planner for each type to
// compute in, a file for each strategy.

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
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
	best map[string]*pipeline.Divisions
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
	return &sweeper{e: e, o: o, dir: dir, engine: engine, best: map[string]*pipeline.Divisions{}}, nil
}

func (w *sweeper) close() { _ = ort.DropTemporary(w.dir) }

// A sizedGraph is the training graph of one size, ready to be planned.
type sizedGraph struct {
	size   sweepSize
	source *pipeline.Source
	dims   map[string]int64
	point  report.SweepPoint
	beside string       // a name for its files, see onnx.NewScratch
	drop   func() error // releases what it was made from and takes away files that were made for it, nil for none
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
		made, err := w.planned(g, p, done)
		if err != nil {
			return nil, err
		}
		list = append(list, made...)
	}
	return list, nil
}

func (g *sizedGraph) close() {
	g.source.Close()
	if g.drop != nil {
		_ = g.drop()
	}
}

// planned predicts one precision of a size.
func (w *sweeper) planned(g *sizedGraph, precisionName string, done func()) ([]report.SweepPoint, error) {
	var list []report.SweepPoint
	var p *pipeline.Planner
	var of *precision.Options // that p is for
	for _, strategy := range w.o.strategies {
		half, err := w.half(precisionName, strategy)
		if err != nil {
			return nil, err
		}
		if p == nil || half != nil && half.Early != of.Early {
			if p, err = w.planner(w.engine, g, half, nil); err != nil {
				return nil, err
			}
			of = half
		}
		file, err := p.PlanWithin(sweptAs(strategy), pipeline.Budget{})
		if err := w.e.interrupted(); err != nil {
			return nil, err
		}
		point := g.point
		point.Precision, point.Strategy = precisionName, strategy
		if err != nil {
			point.Outcome, point.Why = report.SweepFailed, report.Text(err.Error())
		} else {
			w.describe(&point, file)
			document := p.Document(file, pipeline.Budget{})
			point.Overhead, point.Saving, point.TheorySaving = new(document.Overhead), new(document.Saving), document.TheorySaving
			point.Total = new(pipeline.TotalOf(file.Prediction).Bytes())
			w.best[strategy+" "+precisionName] = new(file.Variant.Options.Divisions)
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

// sweptAs is the strategy that a swept one stands for: a sweep looks for what fits at
// all, so optimal goes for the least peak rather than for the knee.
func sweptAs(strategy string) string {
	if strategy == "optimal" {
		return "least"
	}
	return strategy
}

// half is the half type of that name as a strategy wants it, nil for float32.
func (w *sweeper) half(name, strategy string) (*precision.Options, error) {
	half, err := pipeline.ParseHalf(name)
	if err != nil || half == onnx.Undefined {
		return nil, err
	}
	return &precision.Options{To: half, Provider: w.e.halfProvider(), Early: strategy == "none"}, nil
}

// planner plans a graph, without an engine as files stand. A search looks at the variant
// alone that divides as like does, unless that is nil.
func (w *sweeper) planner(engine *remat.Engine, g *sizedGraph, half *precision.Options, like *pipeline.Divisions) (*pipeline.Planner, error) {
	o := w.e.pipelineOptions()
	o.Precision, o.Like = half, like
	o.Normalize, o.Dims = pipeline.Auto, g.dims
	o.Stop = func() bool { return w.e.ctx.Err() != nil }
	given, err := g.source.Sized(g.dims)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.size.model, err)
	}
	p, err := pipeline.NewPlanner(engine, given, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.size.model, err)
	}
	return p, nil
}

// describe fills in what is predicted of a file.
func (w *sweeper) describe(point *report.SweepPoint, file *pipeline.File) {
	peak, live := file.Prediction.TotalPeak, file.Peak
	point.LivePeak, point.TotalPeak = &live, &peak
	point.PerSample = new(peak / max(point.Batch, 1))
	point.Outcome, point.Fits = report.SweepOK, true
	if w.o.limit > 0 && peak > w.o.limit {
		point.Outcome, point.Fits = report.SweepOOM, false
		point.Why = report.Text(fmt.Sprintf("needs %s, limit %s", units.Bytes(peak), units.Bytes(w.o.limit)))
	}
	if !file.Prediction.Exact() {
		point.Why = report.Text("at least: " + file.Prediction.Unknown[0])
	}
}

// measure runs two steps of a file; what has no room is an outcome.
func (w *sweeper) measure(point *report.SweepPoint, g *sizedGraph, p *pipeline.Planner, file *pipeline.File) error {
	files, err := onnx.NewScratch(g.beside)
	if err != nil {
		return err
	}
	defer files.Drop()
	out := files.Graph()
	if err := file.Save(g.source, out, p.Document(file, pipeline.Budget{})); err != nil {
		return err
	}
	feeds := w.e.sessionOptions()
	feeds.Dims, feeds.LR = nil, demoOwnRate // the file has the numbers
	defer w.e.unload(out)
	s, err := openSubject(w.e, out, feeds)
	if err == nil {
		defer s.close()
		for range 2 {
			if err = s.step(w.e); err != nil {
				break
			}
		}
	}
	if err != nil {
		if !outOfMemory(err) {
			return err
		}
		point.Outcome, point.Fits, point.Why = report.SweepOOM, false, report.Text(err.Error())
		return nil
	}
	point.MeasuredLivePeak = new(s.session.Memory().LivePeakBytes)
	point.Seconds = s.run.Steps[len(s.run.Steps)-1].Seconds
	return nil
}

// graph makes the training graph of a size.
func (w *sweeper) graph(size sweepSize) (*sizedGraph, error) {
	row, builtIn, err := builtInModel(size.model)
	switch {
	case err != nil:
		return nil, err
	case builtIn:
		return w.builtIn(size, row)
	}
	return w.foreign(size)
}

// builtIn makes the training graph of a model of the zoo.
func (w *sweeper) builtIn(size sweepSize, row models.Row) (*sizedGraph, error) {
	given := map[string]int64{"layers": size.layers, "seq": size.seq, "batch": size.batch}
	c, err := resized(row, func(flag string) (int64, bool) { return given[flag], given[flag] != 0 })
	if err != nil {
		return nil, err
	}
	built, err := row.Build(c)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(w.dir, "m.onnx")
	if err := built.SaveBare(path); err != nil {
		return nil, err
	}
	g := &sizedGraph{size: size, beside: sweptBeside(path), point: report.SweepPoint{Model: row.Name, Batch: c.Batch, Layers: &c.Layers, Accumulate: max(size.accumulate, 1)}}
	if c.Seq > 0 {
		g.point.Seq = &c.Seq
	}
	src, err := pipeline.Load(path)
	if err != nil {
		return nil, err
	}
	if err := w.derive(g, src, w.e.dims); err != nil {
		return nil, err
	}
	return g, nil
}

// derive makes the training graph of a forward model, which is closed with it. Only what is to be
// run is a file, beside the weights that it refers to.
func (w *sweeper) derive(g *sizedGraph, src *pipeline.Source, dims map[string]int64) (err error) {
	g.drop = src.Close
	defer func() {
		if err != nil {
			_ = g.drop()
		}
	}()
	update := optim.Defaults(w.o.optimizer)
	if g.size.accumulate > 1 {
		update.Accumulate = g.size.accumulate
	}
	d, err := src.Derive(pipeline.DeriveOptions{Grad: grad.Options{Dims: dims, Dialect: grad.DialectONNX}, Update: update})
	if _, ok := errors.AsType[*pipeline.UnclearError](err); ok {
		err = fmt.Errorf("%w: derive it with remat grad --params or --frozen, and sweep what that writes", err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", src.Path, err)
	}
	if !w.o.measure {
		g.source = src.With(d.Model)
		return nil
	}
	files, err := onnx.NewScratch(g.beside)
	if err != nil {
		return err
	}
	g.drop = func() error {
		files.Drop()
		return src.Close()
	}
	if err := d.Save(files.Graph()); err != nil { // which names a file
		return err
	}
	g.source, err = pipeline.Load(files.Graph())
	return err
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
	dims, err := sizedDims(src, w.e.dims, size.batch, size.seq)
	if err == nil {
		err = allSized(src, dims, w.e.dims)
	}
	if err != nil {
		src.Close()
		return nil, err
	}
	g := &sizedGraph{size: size, source: src, dims: dims, beside: sweptBeside(size.model)}
	free := pipeline.FreeDims(src.Model)
	g.point = report.SweepPoint{Model: size.model, Batch: size.batch, Accumulate: max(size.accumulate, 1)}
	if n, ok := g.dims[freeDim(free, batchNames)]; ok && g.point.Batch == 0 {
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
	if err := w.derive(g, src, g.dims); err != nil {
		return nil, err
	}
	g.dims = nil // the derived graph has their numbers
	return g, nil
}

// sweptBeside is a name for graphs that refer to the weights of a file, and so have to lie in
// its folder, where other jobs of the sweep write too.
func sweptBeside(path string) string {
	base := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), ".")
	return filepath.Join(filepath.Dir(path), base[:min(len(base), 100)]+".sweep")
}

// Names that exporters give the dimensions of samples and tokens.
var (
	batchNames = []string{"batch", "batch_size", "n"}
	seqNames   = []string{"seq", "sequence", "seq_len", "sequence_length", "length", "tokens", "t"}
)

// sizedDims are the numbers of a model's free dimensions: those given, and the batch and
// the tokens of a sample where they are not 0.
func sizedDims(src *pipeline.Source, given map[string]int64, batch, seq int64) (map[string]int64, error) {
	dims := map[string]int64{}
	maps.Copy(dims, given)
	free := pipeline.FreeDims(src.Model)
	for _, f := range []struct {
		flag  string
		n     int64
		names []string
	}{{"batch", batch, batchNames}, {"seq", seq, seqNames}} {
		if f.n == 0 {
			continue
		}
		name := freeDim(free, f.names)
		if name == "" {
			return nil, fmt.Errorf("%s: no free %s dimension (free: %s): export it with dynamic shapes, or give the name of a built-in model", src.Path, f.flag, someOr(free, "none"))
		}
		dims[name] = f.n
	}
	return dims, nil
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
