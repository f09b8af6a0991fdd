package main

// What plan and rewrite share: reading the flags, preparing the graph,
// planning under a budget that holds for the written file, and the document
// that describes the plan.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// planOptions are what a user says about a plan.
type planOptions struct {
	strategy string
	budget   string
	total    string
	// overhead bounds what is computed again, as a share; nil does not.
	overhead *float64
	pipeline pipeline.Options
	// update: say what is updated in backward.
	update bool
	// costs names the file that pipeline.Costs are from.
	costs string
	// file is a plan to follow instead of a strategy.
	file string
	// limit ends the search for better plans, 0: never.
	limit time.Duration
}

func planFlags() []cli.Flag {
	return slices.Concat(precisionFlags(), searchFlags(), []cli.Flag{
		&cli.StringFlag{Name: "strategy", Usage: "`S`: " + strategies() + "; default: sqrt, or optimal with a budget"},
		&cli.StringSliceFlag{Name: "budget", Usage: "bound on the predicted live peak of the written file, `2GiB|50%`, or GLOB=2GiB|30% on what the layers that match keep for the backward pass; may be repeated"},
		&cli.StringFlag{Name: "budget-total", Usage: "bound on parameters, state, feeds, session and the arena's reservation together, `8GiB|60%`"},
		&cli.StringFlag{Name: "overhead", Usage: "the least live peak with at most that much more work, `10%`: of FLOPs, or of time with --costs"},
		&cli.StringFlag{Name: "roles", Usage: "`F.json`: name loss, grad and new instead of detecting them"},
		&cli.StringFlag{Name: "normalize", Value: "auto", Usage: "`auto|off|1|99`: pass a foreign graph through ONNX Runtime's optimizer first"},
		&cli.StringFlag{Name: "micro-batches", Usage: "`off|N`: compute forward and backward over N slices of the batch, and sum up the gradients"},
		&cli.StringFlag{Name: "prepack", Usage: "`auto|on|off`: whether kernels keep packed copies of constant weights; auto: only of those whose products have fewer than 16 rows"},
		sizesFlag(),
		&cli.BoolFlag{Name: "update-in-backward", Usage: "report which parameters are updated as soon as their gradient is ready, and why others are not"},
		outputsFlag(),
		&cli.StringSliceFlag{Name: "drop-output", Usage: "`GLOB`: remove matching outputs from the graph"},
	})
}

// searchFlags say what a plan may divide, what it is weighed by, and how long it is looked for.
func searchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "costs", Usage: "`PROFILE.json`: use times measured by run --profile --json instead of FLOPs"},
		&cli.StringFlag{Name: "chunk-loss", Usage: "`off|auto|N|SIZE`: compute the loss over N slices of the tokens, or over as few as hold at most SIZE each; default: optimal chooses"},
		&cli.StringFlag{Name: "tile", Usage: "`off|auto|N`: compute attention scores and other wide products in N parts; default: optimal chooses"},
		&cli.StringFlag{Name: "update-rows", Usage: "`off|auto|N`: compute the updates of the largest parameters, gradients included, over N slices; default: optimal chooses"},
		timeLimitFlag(),
	}
}

// strategies are those of the solvers' table.
func strategies() string {
	var names []string
	for i := range planner.Solvers {
		names = append(names, planner.Solvers[i].Usage())
	}
	return strings.Join(names, "|")
}

// outputsFlag says how next values leave a step.
func outputsFlag() cli.Flag {
	return &cli.StringFlag{Name: "outputs", Usage: "`bound|rows|returned`: whether next values are written over their inputs, those computed by rows each row where it belongs (and large gradients summed up where they are returned), or are new values; default: as the file was written, else bound"}
}

func readOutputs(c *cli.Context) (step.Outputs, error) {
	way, err := step.ParseOutputs(c.String("outputs"))
	if err == nil && way == "" && c.IsSet("outputs") {
		err = errors.New("is empty: want bound, rows or returned")
	}
	if err != nil {
		return "", fmt.Errorf("--outputs %w", err)
	}
	return way, nil
}

func timeLimitFlag() cli.Flag {
	return &cli.DurationFlag{Name: "time-limit", Usage: "stop searching after `DURATION`, such as 30s or 5m, and take the best plan so far"}
}

func readTimeLimit(c *cli.Context) (time.Duration, error) {
	limit := c.Duration("time-limit")
	if c.IsSet("time-limit") && limit <= 0 {
		return 0, fmt.Errorf("--time-limit %s: must be positive, such as 30s or 5m", limit)
	}
	return limit, nil
}

func readPlanOptions(e *env, c *cli.Context) (planOptions, error) {
	o := planOptions{strategy: c.String("strategy"), total: c.String("budget-total"), update: c.Bool("update-in-backward"), pipeline: e.pipelineOptions()}
	for _, flag := range []string{"strategy", "budget-total", "overhead"} {
		if c.IsSet(flag) && c.String(flag) == "" {
			return o, fmt.Errorf("--%s is empty: give a value, or leave it out", flag)
		}
	}
	if err := readBudgets(c.StringSlice("budget"), &o); err != nil {
		return o, err
	}
	if bound := c.String("overhead"); bound != "" {
		share, err := units.ParseShare(bound)
		if err != nil {
			return o, fmt.Errorf("--overhead: %w", err)
		}
		o.overhead = &share
	}
	if o.strategy == "" {
		o.strategy = "sqrt"
		if o.budget != "" || o.total != "" || o.overhead != nil || len(o.pipeline.Layers) > 0 {
			o.strategy = "optimal"
		}
	}
	s, _, err := planner.Find(o.strategy)
	switch {
	case err != nil:
		return o, err
	case o.overhead != nil && (o.budget != "" || o.total != ""):
		return o, errors.New("--overhead bounds the work and --budget the memory: give one of them")
	case o.overhead != nil && s.Frontier == nil:
		return o, fmt.Errorf("--overhead: strategy %s has one plan: use --strategy optimal, or leave --strategy out", o.strategy)
	case len(o.pipeline.Layers) > 0 && s.Frontier == nil:
		return o, fmt.Errorf("--budget %s: strategy %s has one plan: use --strategy optimal, or leave --strategy out", o.pipeline.Layers[0], o.strategy)
	case s.Unbounded && (len(o.pipeline.Layers) > 0 || o.budget != "" || o.total != "" || o.overhead != nil):
		return o, fmt.Errorf("strategy %s takes no bound: use --strategy optimal, or leave --strategy out", o.strategy)
	}
	if e.sizes, err = readBatch(e, c); err != nil {
		return o, err
	}
	o.pipeline.Sizes = e.sizes
	o.pipeline.Normalize, o.pipeline.DropOutputs = pipeline.Normalization(c.String("normalize")), splitList(c.StringSlice("drop-output"))
	if o.limit, err = readTimeLimit(c); err != nil {
		return o, err
	}
	for _, d := range o.pipeline.Divisions.Flags() {
		if *d.Division, err = d.Parse(c.String(d.Flag)); err != nil {
			return o, fmt.Errorf("--%s %q: %w", d.Flag, c.String(d.Flag), err)
		}
		o.pipeline.AsIs = o.pipeline.AsIs || c.IsSet(d.Flag)
	}
	if o.pipeline.Prepack, err = pipeline.ParsePrepacking(c.String("prepack")); err != nil {
		return o, err
	}
	if o.pipeline.Precision, err = readPrecision(e, c); err != nil {
		return o, err
	}
	if o.pipeline.Roles, err = readRoles(c.String("roles")); err != nil {
		return o, err
	}
	if o.pipeline.Outputs, err = readOutputs(c); err != nil {
		return o, err
	}
	if path := c.String("costs"); path != "" {
		costs, err := readCosts(path)
		if err != nil {
			return o, err
		}
		o.pipeline.Costs, o.costs = costs, path
	}
	return o, nil
}

// readBudgets reads each --budget: one may be of the whole step, the others are of layers.
func readBudgets(texts []string, o *planOptions) error {
	for _, text := range texts {
		b, ofLayers, err := pipeline.ParseLayerBudget(text)
		switch {
		case text == "":
			return errors.New("--budget is empty: give a value, or leave it out")
		case err != nil:
			return fmt.Errorf("--budget %w", err)
		case ofLayers:
			o.pipeline.Layers = append(o.pipeline.Layers, b)
		case o.budget != "":
			return fmt.Errorf("--budget %s and --budget %s: both are of the whole step: give one, or name layers, GLOB=%s", o.budget, text, text)
		default:
			o.budget = text
		}
	}
	return nil
}

// batchTells is advice where sizes are unknown that feeds lead to.
const batchTells = "; a batch tells: --feeds F.npz"

// sizesFlag is for commands that run nothing.
func sizesFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "feeds", Usage: "`F.npz`: a batch, for sizes that data alone tells, such as how many tokens stand for pictures; keys as run has them"}
}

// readBatch reads the batch by which sizes are found, nil without one.
func readBatch(e *env, c *cli.Context) (pipeline.Sizes, error) {
	paths := c.StringSlice("feeds")
	if len(paths) == 0 {
		return nil, nil
	}
	feeds, err := e.readArchives(paths)
	if err != nil {
		return nil, err
	}
	engine, err := e.engine()
	if err != nil {
		return nil, fmt.Errorf("--feeds: %w", err)
	}
	return pipeline.SizesFor(engine, remat.Options{Feeds: feeds}, false), nil
}

// pipelineOptions are the global options as the pipeline wants them.
func (e *env) pipelineOptions() pipeline.Options {
	return pipeline.Options{Dims: e.dims, Provider: ort.CPU, Threads: e.threads, OptLevel: e.opt, CUDA: e.onCUDA(), GPU: e.gpu(), Workspace: e.workspace, Sizes: e.sizes, After: e.passed}
}

// gpu is which GPU sessions are to run on.
func (e *env) gpu() remat.GPU { return remat.GPU{Number: e.device, TF32: e.tf32} }

// readFile reads a small file whole; errors name it once.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: no such file", path)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, onnx.PathCause(err))
	}
	return data, nil
}

// readJSON reads a file that a user wrote.
func readJSON(path string, into any) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: invalid JSON: %w", path, err)
	}
	return nil
}

// readRoles reads the file of --roles, nil where none is given.
func readRoles(path string) (*step.Roles, error) {
	if path == "" {
		return nil, nil
	}
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	r, err := step.ParseRoles(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// engine loads ONNX Runtime, once.
func (e *env) engine() (*remat.Engine, error) {
	if e.loaded == nil {
		open := remat.New
		if e.rehearse {
			open = e.openRehearsal
		}
		engine, err := open(e.ort)
		if err != nil {
			return nil, err
		}
		e.loaded = engine
		e.watchSessions(engine)
		e.closers = append(e.closers, func() { engine.Close() })
	}
	return e.loaded, nil
}

// A planned graph is a plan with what it was made from and what it promises.
type planned struct {
	source   *pipeline.Source
	result   *pipeline.File
	document report.Plan
	// limited says that --time-limit ended planning, "" where it did not.
	limited string
	// vain says that the plan computes much again for next to nothing, "" where it does not.
	vain string
}

// load reads a model file, once in a command, and closes it when that ends.
func (e *env) load(path string) (*pipeline.Source, error) {
	if src := e.sources[path]; src != nil {
		return src, nil
	}
	src, err := pipeline.Load(path)
	if err != nil {
		return nil, err
	}
	if e.sources == nil {
		e.sources = map[string]*pipeline.Source{}
	}
	e.sources[path] = src
	return src, nil
}

// loadFor is load for a command that writes to out what it makes of the file.
func (e *env) loadFor(path, out string) (*pipeline.Source, error) {
	src, err := e.load(path)
	if err == nil {
		err = pipeline.CanWrite(src.DataFiles(), out)
	}
	if err == nil {
		err = checkDims(e.dims, src)
	}
	return src, err
}

// unload gives up what load keeps of a file.
func (e *env) unload(path string) {
	if src := e.sources[path]; src != nil {
		delete(e.sources, path)
		src.Close()
	}
}

// loadAll reads model files, and checks that one of them has each dimension of --dim.
func (e *env) loadAll(paths ...string) ([]*pipeline.Source, error) {
	var sources []*pipeline.Source
	for _, path := range paths {
		src, err := e.load(path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, src)
	}
	return sources, checkDims(e.dims, sources...)
}

// filesOf are the files that sources were read from, and those of their weights.
func filesOf(sources []*pipeline.Source) []string {
	var files []string
	for _, src := range sources {
		files = append(files, src.Files()...)
	}
	return files
}

// search has the pipeline show how far it is, and stop with the command or after limit, 0
// for none. Say names what it searches for; done ends what is shown.
func (e *env) search(o *pipeline.Options, what string, limit time.Duration) (say func(string), done func()) {
	bar, of, begun := e.progress(-1, what), "", time.Now()
	o.Progress = func(p pipeline.Progress) { bar.Say(of + planningText(p)) }
	o.Stop = func() bool { return e.ctx.Err() != nil || limit > 0 && time.Since(begun) >= limit }
	o.TimeLimited = limit > 0
	return func(line string) { of = line + ": "; bar.Say(line) }, bar.Finish
}

// makePlan prepares and plans. With the error of a budget that cannot be met comes
// what is closest to it.
func makePlan(e *env, src *pipeline.Source, o planOptions) (*planned, error) {
	e.leaveGarbage()
	_, done := e.search(&o.pipeline, "planning", o.limit)
	defer done()
	p, err := newPlanner(e, src, o)
	if err != nil {
		return nil, err
	}
	budget, err := readBudget(o, p)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var file *pipeline.File
	if o.file != "" {
		file, err = followPlan(p, o.file)
	} else {
		file, err = p.PlanWithin(o.strategy, budget)
	}
	took := time.Since(start)
	var unmet *checkError
	if err != nil {
		if err = infeasible(fmt.Errorf("%s: %w", src.Path, err)); !errors.As(err, &unmet) {
			return nil, err
		}
		if _, limited := p.Limited(); limited {
			err = &checkError{fmt.Errorf("%w, or --time-limit: the search stopped after %s", err, o.limit)}
		}
		if file == nil {
			return nil, err
		}
	}
	if err := e.interrupted(); err != nil {
		return nil, err
	}
	return e.describe(src, o, p, file, budget, took), err
}

// newPlanner prepares the graph, and checks that measured costs are of it.
func newPlanner(e *env, src *pipeline.Source, o planOptions) (*pipeline.Planner, error) {
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	given, err := sized(src, o.pipeline.Dims)
	if err != nil {
		return nil, err
	}
	p, err := pipeline.NewPlanner(engine, given, o.pipeline)
	if err != nil {
		return nil, infeasible(fmt.Errorf("%s: %w", src.Path, err))
	}
	if err := e.dumpProblem(p.Problem()); err != nil {
		return nil, err
	}
	if o.pipeline.Costs != nil {
		err = checkCosts(given, p, o.pipeline.Costs, o.costs)
	}
	return p, err
}

// describe is a planned file with its document.
func (e *env) describe(src *pipeline.Source, o planOptions, p *pipeline.Planner, file *pipeline.File, budget pipeline.Budget, took time.Duration) *planned {
	old := e.stale(src, func() *int64 { return &p.Before.LivePeak })
	if o.update {
		file.Reports = append(file.Reports, file.UpdatesInBackward())
	}
	r := &planned{source: src, result: file}
	candidates, limited := p.Limited()
	if limited {
		r.limited = fmt.Sprintf("stopped after %s: best of %d candidates so far; a longer --time-limit may find a better plan", o.limit, candidates)
		noted := *file.Plan
		noted.Notes = append(slices.Clone(noted.Notes), r.limited)
		file.Plan = &noted
	}
	r.document = p.Document(file, budget)
	if old != nil {
		r.document.Notes = append(r.document.Notes, report.Note{What: "prediction", Reason: report.Text(old.String())})
	}
	if r.vain = gainsNothing(&r.document, file.Variant.Problem().Floor(), o.divided()); r.vain != "" {
		r.document.Notes = append(r.document.Notes, report.Note{What: "plan", Reason: report.Text(r.vain)})
	}
	r.document.TimeLimited = limited
	r.document.SolverSeconds, r.document.PlanSeconds = p.Solving.Seconds(), took.Seconds()
	return r
}

// noGain is the share of the peak below which work that is done again is done for
// nothing, and that share of the step's work from which on it is worth a word.
const noGain, someWork = 0.005, 0.01

// gainsNothing says of a plan that it computes much again and saves next to nothing,
// "" where it does not. Of that work, parts is what computing in parts adds whatever the plan, as a share of
// the step's, and divided names the flags that ask for these.
func gainsNothing(d *report.Plan, parts float64, divided []string) string {
	if float64(d.Overhead) < someWork || float64(d.Saving) >= noGain {
		return ""
	}
	work, saved := units.Percent(float64(d.Overhead)), "saves "+units.Percent(float64(d.Saving))+" of the peak"
	if d.Saving < 0 {
		saved = "raises the peak by " + units.Percent(-float64(d.Saving))
	}
	if 2*parts > float64(d.Overhead) && len(divided) > 0 {
		return fmt.Sprintf("computing in parts adds %s of work and %s: leave out %s", work, saved, strings.Join(divided, " and "))
	}
	return fmt.Sprintf("%s computes %s again and %s: --strategy none is without that work", d.Strategy, work, saved)
}

// divided names the flags that ask for computing in parts.
func (o *planOptions) divided() (flags []string) {
	for _, d := range o.pipeline.Divisions.Asked() {
		flags = append(flags, "--"+d.Flag)
	}
	return flags
}

// remarkPlan says on stderr what was not done as asked, or for nothing.
func (e *env) remarkPlan(path string, r *planned) {
	lines := append([]string(nil), r.result.Plan.Notes...)
	if r.vain != "" {
		lines = append(lines, r.vain)
	}
	asks := pipeline.AsksForData(r.result.Variant.Model, r.result.Roles())
	switch {
	case e.sizes != nil && asks:
		lines = append(lines, "sizes that data alone tells are those of the batch in --feeds; another batch may hold more or less")
	case e.sizes != nil:
		lines = append(lines, "--feeds: no size depends on what is fed")
	}
	if p := r.result.Prediction; p != nil {
		if why := unpredicted(p, p.Unknown, nil); why != "" {
			if asks && e.sizes == nil {
				why += batchTells
			}
			lines = append(lines, "not predicted, so that the peaks are lower bounds: "+why)
		}
	}
	for _, line := range lines {
		if line != r.limited {
			fmt.Fprintf(e.stderr, "remat: %s: %s\n", filepath.Base(path), line)
		}
	}
}

// infeasible makes a budget that cannot be met the failure of a check.
func infeasible(err error) error {
	var live *planner.InfeasibleError
	var total *pipeline.TotalError
	var workspace *pipeline.WorkspaceError
	var layers *planner.LimitError
	var work *pipeline.WorkError
	switch {
	case errors.As(err, &work) && work.Asked > 0:
		return &checkError{fmt.Errorf("%w: raise --overhead, or let the search choose slices", err)}
	case errors.As(err, &work):
		return &checkError{fmt.Errorf("%w: raise --overhead, or a --budget", err)}
	case errors.As(err, &layers):
		return &checkError{fmt.Errorf("%w: raise --budget %s= to at least %s", err, layers.Name, units.BytesUp(layers.Least))}
	case errors.As(err, &workspace):
		return &checkError{fmt.Errorf("%w: raise --chunk-loss to at least %s", err, units.BytesUp(workspace.Least))}
	case errors.As(err, &live):
		return &checkError{fmt.Errorf("%w: raise --budget to at least %s", err, units.BytesUp(live.Least))}
	case errors.As(err, &total):
		return &checkError{fmt.Errorf("%w: raise --budget-total to at least %s", err, units.BytesUp(total.Least.Bytes()))}
	}
	return err
}

// readBudget turns --budget and --budget-total into bounds; a share is of what
// the given file takes as it stands.
func readBudget(o planOptions, p *pipeline.Planner) (pipeline.Budget, error) {
	var b pipeline.Budget
	b.Work = o.overhead
	if o.budget != "" {
		size, err := units.ParseSize(o.budget)
		if err != nil {
			return b, fmt.Errorf("--budget: %w", err)
		}
		if b.Live = size.Of(p.Before.LivePeak); b.Live == 0 {
			return b, noBudget("--budget", o.budget)
		}
	}
	if o.total != "" {
		size, err := units.ParseSize(o.total)
		if err != nil {
			return b, fmt.Errorf("--budget-total: %w", err)
		}
		b.Total = size.Bytes
		if size.IsShare {
			b.Total = size.Of(pipeline.TotalOf(p.Before).Bytes())
		}
		if b.Total == 0 {
			return b, noBudget("--budget-total", o.total)
		}
	}
	return b, nil
}

func noBudget(flag, value string) error {
	return &checkError{fmt.Errorf("%s %s: cannot be met: less than one byte; give a size such as 2GiB or 50%%", flag, value)}
}
