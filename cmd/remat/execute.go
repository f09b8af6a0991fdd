package main

// Running graphs and measuring them, for run, compare and demo: a session is
// opened, predicted, stepped, and described in the document of the contract.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite/optim"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// feedFlags are the flags that say what goes in.
func feedFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "feeds", Usage: "`F.npz`: values of inputs; a key is NAME, in:NAME or param:NAME"},
		&cli.StringSliceFlag{Name: "feed", Usage: "`NAME=F.npy`: the value of one input"},
		&cli.StringFlag{Name: "data", Usage: "`F.npz`: values of inputs by name, whose leading axis is the step"},
		&cli.Uint64Flag{Name: "seed", Usage: "seed of unfed inputs and of random operators, `N`"},
		&cli.Float64Flag{Name: "lr", Value: 1e-3, Usage: "learning rate, `X`"},
		&cli.IntFlag{Name: "steps", Value: 1, Usage: "number of steps, `N`"},
		&cli.StringFlag{Name: "roles", Usage: "`F.json`: name loss, grad and new instead of detecting them"},
		outputsFlag(),
		memoryLimitFlag(),
	}, scalingFlags()...)
}

// readFeeds reads what goes in, and how it is to run.
func readFeeds(e *env, c *cli.Context) (remat.Options, error) {
	o := e.sessionOptions()
	o.Seed, o.LR = c.Uint64("seed"), c.Float64("lr")
	var err error
	if o.LossScale, o.Scaling, err = readScaling(c); err != nil {
		return o, err
	}
	if o.Outputs, err = readOutputs(c); err != nil {
		return o, err
	}
	if o.MemoryLimit, err = readMemoryLimit(e, c); err != nil {
		return o, err
	}
	e.rates = map[string]bool{}
	for _, r := range rateFlags {
		e.rates[r.flag] = c.IsSet(r.flag)
	}
	if math.IsNaN(o.LR) || math.IsInf(o.LR, 0) {
		return o, fmt.Errorf("--lr %v: want a finite number", o.LR)
	}
	if c.Int("steps") < 1 {
		return o, fmt.Errorf("--steps %d: want at least 1", c.Int("steps"))
	}
	if o.Feeds, err = e.readArchives(c.StringSlice("feeds")); err != nil {
		return o, err
	}
	for _, f := range c.StringSlice("feed") {
		name, path, ok := strings.Cut(f, "=")
		if !ok || name == "" || path == "" {
			return o, fmt.Errorf("--feed %q: want NAME=F.npy", f)
		}
		v, err := remat.ReadNPY(path)
		if err != nil {
			return o, err
		}
		if o.Feed == nil {
			o.Feed = map[string]remat.Tensor{}
		}
		o.Feed[name] = v
		e.fed = append(e.fed, path)
	}
	if path := c.String("data"); path != "" {
		values, err := remat.ReadNPZ(path)
		if err != nil {
			return o, err
		}
		o.Data = values
		e.archives = append(e.archives, archive{path, slices.Collect(maps.Keys(values))})
	}
	e.fed = append(e.fed, c.String("data"), c.String("roles"))
	roles, err := readRoles(c.String("roles"))
	o.Roles = roles
	return o, err
}

// readArchives reads archives of feeds, nil where there is none; the later wins over the
// earlier.
func (e *env) readArchives(paths []string) (map[string]remat.Tensor, error) {
	var feeds map[string]remat.Tensor
	for _, path := range paths {
		values, err := remat.ReadNPZ(path)
		if err != nil {
			return nil, err
		}
		e.archives = append(e.archives, archive{path, slices.Collect(maps.Keys(values))})
		e.fed = append(e.fed, path)
		if feeds == nil {
			feeds = map[string]remat.Tensor{}
		}
		maps.Copy(feeds, values)
	}
	return feeds, nil
}

// scalingFlags say how the loss scale of a graph in half precision begins and changes.
func scalingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.Float64Flag{Name: "loss-scale", Value: 65536, Usage: "first loss scale, `X`, if the graph has one"},
		&cli.Float64Flag{Name: "loss-scale-backoff", Value: 0.5, Usage: "factor of the scale after an overflow, `X`"},
		&cli.Float64Flag{Name: "loss-scale-growth", Value: 2, Usage: "factor of the scale after a run of good steps, `X`"},
		&cli.IntFlag{Name: "loss-scale-interval", Value: 2000, Usage: "length of that run, `N`; -1: never"},
	}
}

func readScaling(c *cli.Context) (scale float64, s remat.Scaling, err error) {
	scale = c.Float64("loss-scale")
	s = remat.Scaling{Backoff: c.Float64("loss-scale-backoff"), Growth: c.Float64("loss-scale-growth"), Interval: c.Int("loss-scale-interval")}
	if !(s.Backoff > 0 && s.Backoff <= 1) || !(s.Growth >= 1) || !(scale >= 0) || math.IsInf(scale, 0) || math.IsInf(s.Growth, 0) {
		err = fmt.Errorf("--loss-scale %v, -backoff %v, -growth %v: want a positive scale, a backoff of at most 1 and a growth of at least 1", scale, s.Backoff, s.Growth)
	}
	return scale, s, err
}

// An archive is a file of --feeds or --data by the keys that it has.
type archive struct {
	path string
	keys []string
}

// warnUnread says once of an archive that it feeds a model nothing: other keys are
// ignored, but whoever names a file means some of it.
func (e *env) warnUnread(model string, m *onnx.Model) {
	for i, a := range e.archives {
		read := slices.ContainsFunc(a.keys, func(key string) bool {
			for _, prefix := range []string{"in:", "param:"} {
				if v := m.Graph.Value(strings.TrimPrefix(key, prefix)); v != nil && v.IsInput() {
					return true
				}
			}
			return false
		})
		if !read && a.path != "" {
			fmt.Fprintf(e.stderr, "remat: %s: no key matches an input of %s: it feeds nothing\n", a.path, filepath.Base(model))
			e.archives[i].path = ""
		}
	}
}

// A subject is one graph that is being run.
type subject struct {
	path    string
	session *remat.Session
	roles   step.Roles
	// moments are the next values that average gradients.
	moments map[string]bool
	run     *report.Run
	trace   []ort.Event
	// nodes are those of the predicted step in order, without times.
	nodes []report.Span
	// measured is the profile, nil without one.
	measured *ort.Profile
	// layers names the layer of each node of the predicted step.
	layers map[string]string
	// arena is the setup that suits the predicted step, nil without one.
	arena *ortmodel.ArenaSetup
	// visit, if any, sees the outputs of the first step while they last.
	visit func([]remat.Output)
	// parts of the batch that make one step, where there are more than one.
	parts int
	// draw is what a step draws at random, and otherwise are the inputs that begin with other
	// values than those of the graph that this one is compared with.
	draw      draw
	otherwise []string
	// free are dimensions that the file leaves free and the feeds fix.
	free []string
	// options are those that the session was opened with.
	options remat.Options
	// counted: the session's bytes are known; asked: they were asked for, as can be done once
	// of a graph that is given up then; see countConstants.
	counted, asked bool
	// ahead: the session may hold constants that the file has no initializers for, as ONNX Runtime computes them
	// above level 0, and has those of Constant nodes at every level.
	ahead bool
	// budgets are those of layers that the file has.
	budgets []keptBuffers
	// profiled: the most expensive operators are wanted.
	profiled bool
}

// openSubject opens a file for running and predicts it.
func openSubject(e *env, path string, o remat.Options) (*subject, error) {
	return openPath(e, path, o, (*remat.Engine).OpenLoaded, nil)
}

// openAlone is openSubject for a file that nothing else reads, before or meanwhile: ahead of
// inputs, which take memory, all of the graph and the predictions is given up that steps and
// the report do not need.
func openAlone(e *env, path string, o remat.Options) (*subject, error) {
	return openPath(e, path, o, (*remat.Engine).OpenOwned, func(s *subject) error {
		s.countConstants()
		if !s.options.Trace && len(s.budgets) == 0 && !s.profiled {
			s.nodes, s.layers, s.run.Timeline = nil, nil, nil
		}
		src := e.sources[path]
		delete(e.sources, path)
		err := src.GiveUp()
		if !s.run.Rehearsed { // which asks for the graph again
			s.session.Spare()
		}
		e.giveBack()
		return err
	})
}

func openPath(e *env, path string, o remat.Options, open func(*remat.Engine, *onnx.Model, remat.Options) (*remat.Session, error), made func(*subject) error) (*subject, error) {
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	src, err := e.load(path)
	if err != nil {
		return nil, err
	}
	s, err := openSource(e, src, o, func(m *onnx.Model, o remat.Options) (*remat.Session, error) { return open(engine, m, o) }, made)
	if err != nil {
		return nil, err
	}
	s.remarkDrawn(e, o)
	if err := s.remarkFromEnd(e); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// openSource opens a model that was read, in the way that suits it, and predicts it once
// ONNX Runtime has it; then comes made, if any, and then inputs get their values.
func openSource(e *env, src *pipeline.Source, o remat.Options, open func(*onnx.Model, remat.Options) (*remat.Session, error), made func(*subject) error) (*subject, error) {
	path := src.Path
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	m, err := src.Typed(e.dims)
	if err != nil {
		return nil, err
	}
	if len(m.Graph.Nodes) == 0 && len(m.Graph.Outputs) == 0 { // which ONNX Runtime does not take
		return nil, fmt.Errorf("%s: the graph is empty: it has no nodes and no outputs", filepath.Base(path))
	}
	mapped, _ := remat.RSS()
	e.warnUnread(path, m)
	s := &subject{path: path, options: o, moments: optim.Moments(m.Graph)}
	var found *analysis.Analysis
	s.roles, found = pipeline.FoundRoles(m, o.Roles)
	if found != nil {
		o.Roles = &s.roles
	}
	s.profiled = o.Profile || o.ProfileAside
	o.Profile = o.Profile || engine.Rehearsed() // says where nodes are placed
	o.Trace = o.Trace || len(pipeline.LayerBudgetsIn(m)) > 0
	o.Made = func(session *remat.Session) error {
		s.session = session
		s.describe(e, src, m, o, found)
		m, found = nil, nil // this function lives as long as the session
		if made == nil {
			return nil
		}
		return made(s)
	}
	executed, err := src.Executed()
	if err != nil {
		return nil, err
	}
	if s.session, err = open(executed, o); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	load := s.session.Load()
	s.run.Load = &report.Load{Start: e.startRSS, Mapped: mapped, Session: load.Session, Feeds: load.Feeds}
	return s, nil
}

// describe begins the document of a session that was made: what it is, and what is
// predicted of the model.
func (s *subject) describe(e *env, src *pipeline.Source, m *onnx.Model, o remat.Options, found *analysis.Analysis) {
	s.roles = s.session.Roles
	s.run = &report.Run{
		Model: s.path, Provider: string(s.session.Provider), ORTVersion: e.loaded.Env.Version(),
		Threads: s.session.Threads(), OptLevel: o.Level, LossOutput: report.Text(s.roles.Loss),
	}
	if s.roles.Leave() {
		s.run.Outputs = string(s.session.Outputs())
	}
	s.ahead = o.Level > 0 || slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return n.Is("Constant") })
	if p := pipeline.PrecisionOf(m); p != nil {
		s.run.Precision = report.Text(p.String())
	}
	s.run.Rehearsed = e.loaded.Rehearsed() && s.session.Provider == ort.CUDA
	if s.run.Rehearsed {
		if err := remat.ShortProducts(m.Graph); err != nil {
			s.remark(e, "no GPU would run it: %v", err)
		}
	}
	s.predict(e, m, o, found)
	s.remarkRates(e, m)
	s.run.Stale = e.stale(src, func() *int64 { return s.run.Memory.PredictedLivePeakBytes })
}

// predict fills in what was predicted; a graph that cannot be predicted runs
// all the same, and its predictions stay null.
func (s *subject) predict(e *env, m *onnx.Model, o remat.Options, a *analysis.Analysis) {
	free := maps.Clone(s.session.Dims())
	fixed := func(name string) bool { _, ok := o.Dims[name]; return ok }
	maps.DeleteFunc(free, func(name string, _ int64) bool { return fixed(name) })
	if len(free) > 0 {
		s.free = slices.DeleteFunc(pipeline.FreeDims(s.session.Model), fixed)
	}
	po := pipeline.Options{Dims: o.Dims, Free: free, Threads: s.session.Threads(), OptLevel: o.Level, CUDA: s.session.Provider == ort.CUDA, GPU: e.gpu(), Sizes: pipeline.SizesFor(e.loaded, o, true)}
	p, err := pipeline.Predict(e.loaded, m, s.roles, po, s.session.Bound())
	if err != nil || !p.Exact() { // a lower bound is no prediction
		var unknown []string
		if p != nil {
			unknown = p.Unknown
		}
		s.run.NoPrediction = report.Text(unpredicted(p, unknown, err))
		if _, ahead := errors.AsType[*pipeline.AheadError](err); !ahead {
			s.remark(e, "not predicted: %s", s.run.NoPrediction)
		}
		return
	}
	if err := s.session.Place(p.Slab()); err != nil {
		s.remark(e, "no slab: %v", err)
	}
	live, session, reserved := p.LivePeak, p.Session.Bytes(), p.Reserved() // copies, which do not keep the prediction
	s.run.Memory.PredictedLivePeakBytes = &live
	s.run.Memory.PredictedSessionBytes = &session
	arena := p.Arena()
	s.run.Memory.PredictedReservedBytes = &reserved
	s.arena, s.run.Memory.PredictedArenaReservedBytes = &arena.Setup, &arena.Reserved
	s.run.Fragmentation = pipeline.Fragmentation(p)
	layer := func(*onnx.Node) string { return "" }
	if a != nil {
		layer = pipeline.ModuleNames(a)
	}
	s.run.SetTimeline(pipeline.Timeline(p, layer))
	s.budgets = keptBuffersOf(m, p)
	s.layers = map[string]string{}
	for k, n := range p.Nodes {
		s.layers[n.Label()] = layer(n)
		s.nodes = append(s.nodes, report.Span{Node: n.Label(), Op: n.OpType(), Layer: s.layers[n.Label()], Part: pipeline.PartOf(p, k)})
	}
}

// step runs one step and records it. A step in parts is the run of all of them:
// its time is theirs together, its loss their mean.
func (s *subject) step(e *env) error {
	if s.run.Rehearsed {
		return s.rehearse(e)
	}
	rec := report.Step{Seconds: new(float64), Outputs: map[string]report.Float{}}
	parts := max(s.parts, 1)
	var last *remat.Step
	for range parts {
		step, err := s.once(e)
		if err != nil {
			return err
		}
		*rec.Seconds += step.Seconds
		rec.Skipped = rec.Skipped || step.Skipped
		if step.LossScale > 0 {
			rec.LossScale = new(report.Float(step.LossScale))
		}
		for _, o := range step.Outputs {
			v, ok := 0.0, o.Err == nil
			if ok {
				v, ok = o.Scalar()
			}
			switch {
			case ok && o.Name == s.roles.Loss:
				rec.Outputs[o.Name] += report.Float(v / float64(parts))
			case ok:
				rec.Outputs[o.Name] = report.Float(v)
			}
		}
		last = step
	}
	s.run.Steps = append(s.run.Steps, rec)
	if len(s.run.Steps) == 1 {
		if s.run.NoPrediction != "" { // what ran ahead failed alone
			s.remark(e, "not predicted: %s", s.run.NoPrediction)
		}
		s.trace = last.Trace
		if s.visit != nil {
			outputs, err := s.session.Last()
			if err != nil {
				return err
			}
			s.visit(outputs)
		}
	}
	return nil
}

// once runs the session's graph.
func (s *subject) once(e *env) (*remat.Step, error) {
	step, err := s.session.Step(e.ctx)
	if err != nil && e.ctx.Err() != nil {
		return nil, errInterrupted
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", filepath.Base(s.path), err)
		if drawn := s.session.Drawn(); len(drawn) > 0 && !outOfMemory(err) && beyondLimit(err) == nil {
			err = fmt.Errorf("%w; these inputs had no feed and were drawn at random, so they may not fit together: %s: give a batch with --feeds F.npz", err, some(drawn))
		}
		return nil, err
	}
	return step, nil
}

// finish writes the measured sizes into the document and spends the session: no
// step follows. After an interrupt, and where there is no memory for it, what takes
// a second session is not measured, and stays null.
func (s *subject) finish(e *env, complete bool) error {
	if s.run.Rehearsed {
		if err := s.finishRehearsal(e, complete); err != nil {
			return err
		}
	} else if err := s.session.MeasureRSS(); err != nil {
		return err
	}
	s.session.Release()
	ort.Trim() // a second session follows, or none
	counted := !s.ahead
	if complete {
		var err error
		// On a rehearsed device an arena that does not fit is a step that does not.
		if counted, err = s.measureAside(e); err != nil && e.ctx.Err() == nil && (s.run.Rehearsed || !outOfMemory(err)) {
			return fmt.Errorf("%s: with an arena: %w", filepath.Base(s.path), err)
		}
	}
	if p := s.session.Aside(); p != nil {
		s.top(p)
	}
	s.remarkSteps(e, s.options)
	if err := s.session.SlabError(); err != nil && s.run.NoPrediction != "" { // else the steps had the prediction's places
		s.remark(e, "%v", err)
	}
	s.checkPrediction(e)
	s.counted = counted
	s.noteMemory()
	m, to := s.session.Memory(), &s.run.Memory
	to.ReservedBytes = &m.ReservedBytes
	to.ArenaPeakBytes, to.ArenaReservedBytes = m.ArenaPeakBytes, m.ArenaReservedBytes
	if m.SlabBytes > 0 {
		to.SlabBytes, to.AstrayBytes = &m.SlabBytes, &m.AstrayBytes
	}
	s.run.LayerBudgets = s.layerBudgets()
	var seconds []float64
	for i, st := range s.run.Steps {
		if i > 0 || len(s.run.Steps) == 1 {
			if st.Seconds != nil {
				seconds = append(seconds, *st.Seconds)
			}
		}
	}
	s.run.StepSeconds = report.NewSpread(seconds)
	return nil
}

// noteMemory writes the measured sizes into the document.
func (s *subject) noteMemory() {
	m, to := s.session.Memory(), &s.run.Memory
	to.ParameterBytes, to.StateBytes, to.FeedBytes, to.OutputBytes = m.ParameterBytes, m.StateBytes, m.FeedBytes, m.OutputBytes
	to.LivePeakBytes, to.RSSPeakBytes = &m.LivePeakBytes, m.RSSPeakBytes
	if s.counted {
		to.SessionBytes, to.TotalPeakBytes = &m.SessionBytes, &m.TotalPeakBytes
	}
}

// measureAside measures what takes a second session; counted says that the bytes
// of the session are known.
func (s *subject) measureAside(e *env) (counted bool, err error) {
	counted = !s.ahead || s.counted
	if !counted && !s.asked {
		if err := s.session.MeasureConstants(); err != nil {
			return false, err
		}
		counted = true
	}
	return counted, s.session.MeasureArena(e.ctx, s.arena, false)
}

// profile fills in the times of all nodes, and the most expensive operators.
func (s *subject) profile() error {
	p, err := s.session.Profile()
	if err != nil {
		return err
	}
	s.measured = p
	s.run.NodeSeconds = map[string]float64{}
	for _, n := range p.Nodes {
		s.run.NodeSeconds[n.Node] += n.Duration.Seconds()
	}
	s.top(p)
	return nil
}

// top fills the tables of the most expensive operators.
func (s *subject) top(p *ort.Profile) {
	times, sizes := remat.Top(p, 10)
	if s.run.Rehearsed {
		times = nil
	}
	for _, t := range times {
		s.run.TopTime = append(s.run.TopTime, report.OpTime{Node: t.Node, Op: t.Op, Layer: report.Text(s.layers[t.Node]), Seconds: t.Seconds, Share: t.Share})
	}
	for _, t := range sizes {
		s.run.TopMemory = append(s.run.TopMemory, report.OpMemory{Node: t.Node, Op: t.Op, Layer: report.Text(s.layers[t.Node]), Bytes: t.Bytes, Share: t.Share})
	}
}

func (s *subject) close() {
	if s != nil && s.session != nil {
		s.session.Close()
		s.session = nil
	}
}
