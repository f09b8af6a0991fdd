// Package remat rewrites ONNX training graphs so that training fits in memory: it
// derives a training graph from an exported forward model, plans which values to
// keep and which to compute again, writes the graph that does so, and predicts, to
// the byte, what stock ONNX Runtime takes to run it.
//
//	forward ─ Derive ─▶ training graph ─ Plan ─▶ plan ─ Rewrite ─▶ smaller graph
//	                          │                                        │
//	                          └─────── Predict, Session ───────────────┘
//
// A graph is a file; what is written is portable, and needs nothing but ONNX
// Runtime, 1.18 or newer. Sizes are bytes. The live peak is the most that a step
// has allocated at one moment; parameters, optimizer state and inputs come on top.
//
// Errors are one line and say what to do. Those that a program decides by have
// types: BudgetError, TotalError, FreeDimsError, UnclearError, MemoryError.
//
// The program is cmd/remat. Of this module's packages, this one, planner, rewrite,
// runtime and models are for other programs, and onnx and ortmodel, in whose types
// they speak; ARCHITECTURE.md is the map of all.
package remat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/loss"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Version is written into every file that this package makes.
const Version = pipeline.Version

// Errors that a program decides by.
type (
	// BudgetError says that no plan was found whose live peak keeps the budget; it
	// has the least one found, and a bound below which none can be.
	BudgetError = planner.InfeasibleError
	// TotalError says that no plan was found whose total keeps the budget; it has
	// the parts of the least one found.
	TotalError = pipeline.TotalError
	// FreeDimsError lists the dimensions that need a number; see Open.
	FreeDimsError = pipeline.FreeDimsError
	// UnclearError lists initializers of which nothing in the file tells whether
	// they are weights; see DeriveOptions.
	UnclearError = pipeline.UnclearError
	// MemoryError says that a step takes more than the machine has.
	MemoryError = runtime.MemoryError
)

// A Graph is an ONNX file: a forward model or a training graph. It is read once, and
// not changed. Goroutines may share it: of calls that read it, one waits for another.
type Graph struct {
	source *pipeline.Source
	dims   map[string]int64
	// reading: copies of the model share its tensors, whose bytes a session in the making
	// takes out and puts back.
	reading sync.Mutex
	closed  bool
}

// read takes the graph for a call that reads it, which unlocks reading when it is done.
func (g *Graph) read() error {
	g.reading.Lock()
	if g.closed {
		g.reading.Unlock()
		return fmt.Errorf("%s: the graph is closed: open it again", g.Path())
	}
	return nil
}

// Open reads an ONNX file. Dims are numbers for its free dimensions, by name.
// A name that no input has is an error. External data files are found beside it. Close
// the graph after the last use of it, and of what was made from it.
func Open(path string, dims map[string]int64) (*Graph, error) {
	if path == "" {
		return nil, errors.New("no name of a file to open: it is empty")
	}
	source, err := pipeline.Load(path)
	if err != nil {
		return nil, err
	}
	if err := checkDims(source, dims); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), source.Close())
	}
	return &Graph{source: source, dims: maps.Clone(dims)}, nil
}

// checkDims refuses numbers that can be none, for dimensions that the file has not, and
// other ones than it was written for.
func checkDims(source *pipeline.Source, dims map[string]int64) error {
	free, fixed := pipeline.FreeDims(source.Model), pipeline.FixedDims(source.Model)
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		n, was := fixed[name]
		switch known := slices.Contains(free, name); {
		case dims[name] < 1:
			return fmt.Errorf("dimension %s=%d: must be 1 or more", name, dims[name])
		case !known && !was:
			if len(free) == 0 {
				return fmt.Errorf("no input has a dimension %q: no dimension is free", name)
			}
			return fmt.Errorf("no input has a dimension %q: free are %s", name, strings.Join(free, ", "))
		case !known && n != dims[name]:
			return fmt.Errorf("dimension %s=%d: the file was written for %s=%d", name, dims[name], name, n)
		}
	}
	return nil
}

// canWrite reports why out cannot be written.
func canWrite(reads []string, out string) error {
	if out == "" {
		return errors.New("no name of a file to write: it is empty")
	}
	return pipeline.CanWrite(reads, out)
}

// Close releases the file. A call that would read it afterwards is an error.
func (g *Graph) Close() error {
	g.reading.Lock()
	defer g.reading.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	return g.source.Close()
}

// Path is the file's name.
func (g *Graph) Path() string { return g.source.Path }

// FreeDims lists the named dimensions of the inputs that have no number yet.
func (g *Graph) FreeDims() []string {
	free := pipeline.FreeDims(g.source.Model)
	return slices.DeleteFunc(free, func(name string) bool { _, given := g.dims[name]; return given })
}

// A Tensor is dense data in host memory, little-endian.
type Tensor = runtime.Tensor

// A Value is an input or output of a graph.
type Value struct {
	Name string
	Type string  // of its elements, "float32"
	Dims []int64 // -1 where it has no number
}

// Inputs lists the inputs: what is fed, parameters, optimizer state.
func (g *Graph) Inputs() []Value { return values(g.source.Model.Graph.Inputs) }

// Outputs lists the outputs: the loss, gradients, next values of parameters.
func (g *Graph) Outputs() []Value { return values(g.source.Model.Graph.Outputs) }

func values(list []*onnx.Value) []Value {
	var out []Value
	for _, v := range list {
		w := Value{Name: v.Name, Type: v.Type.DType.String()}
		for _, d := range v.Type.Shape {
			n, known := d.Int()
			if !known {
				n = -1
			}
			w.Dims = append(w.Dims, n)
		}
		out = append(out, w)
	}
	return out
}

// LossOptions say what loss a model gets. Kind has to be given.
type LossOptions struct {
	// Kind is one of remat loss --kind, such as "cross-entropy" or "next-token".
	Kind string
	// Output names the prediction; "": the only output of floats, or logits.
	Output string
	// Labels is the name of the new input; "": labels.
	Labels string
	// ClassAxis is the axis of the classes of a cross-entropy; nil: that of the model's
	// Softmax, or the second of two.
	ClassAxis *int
	// Ignore is the label that takes no part; nil: -100.
	Ignore *int64
	// Keep are globs over the names of outputs that stay.
	Keep []string
}

// WithLoss writes a forward model that was exported without a loss to out, with one: its
// first output, and a new input of labels. Inputs of a decoder's past are gone, since a
// training step has none. Weights in files of their own are referred to, as by Derive.
func (g *Graph) WithLoss(out string, o LossOptions) (*Graph, error) {
	if err := g.read(); err != nil {
		return nil, err
	}
	defer g.reading.Unlock()
	kind, err := loss.ParseKind(o.Kind)
	if err != nil {
		return nil, err
	}
	if err := canWrite(g.source.Files(), out); err != nil {
		return nil, err
	}
	if _, err := g.source.WithLoss(out, loss.Options{Kind: kind, Output: o.Output, Labels: o.Labels, ClassAxis: o.ClassAxis, Ignore: o.Ignore, Keep: o.Keep, Dims: g.dims}, nil); err != nil {
		return nil, err
	}
	return Open(out, nil)
}

// DeriveOptions say how a training graph is derived. The zero value trains all
// weights and returns their gradients.
type DeriveOptions struct {
	// Loss is the output to differentiate; "": the only scalar float output, or the only
	// one from which a gradient reaches a parameter.
	Loss string
	// Train and Frozen are globs over the names of initializers: what is trained,
	// and what is not; Frozen wins. No gradient flows through values that match Stop.
	Train, Frozen, Stop []string
	// Tie trains a matrix and its transpose, where the file holds both, as one parameter:
	// a head that is tied to its embedding, which TorchScript writes as two.
	Tie bool
	// Adapters add low-rank pairs to linear layers, as remat grad --lora takes them:
	// "*_proj.weight:r=8,alpha=16". Then only these are trained, and what Train names.
	Adapters []string
	// Optimizer is one of remat grad --optimizer, such as "sgd" or "adamw", with its
	// default numbers, or "" for none. With one, each parameter P has an output P.new,
	// its value after the step.
	Optimizer string
	// ClipNorm bounds the norm of all gradients together; 0 does not.
	ClipNorm float64
	// Accumulate updates in every so many steps, with the mean of their gradients.
	Accumulate int64
}

// Derive writes the training graph of a forward model that returns its loss, and
// beside it, as a safetensors file of the same name, the weights that the model's
// own file held. Where the weights lie in files of their own, these are referred
// to, and out has to be in a folder that holds them. The dimensions that Open was
// given are the training graph's.
func (g *Graph) Derive(out string, o DeriveOptions) (*Graph, error) {
	if err := g.read(); err != nil {
		return nil, err
	}
	defer g.reading.Unlock()
	kind := optim.None
	if o.Optimizer != "" {
		var err error
		if kind, err = optim.ParseKind(o.Optimizer); err != nil {
			return nil, fmt.Errorf("optimizer: %w", err)
		}
	}
	if kind == optim.None && (o.ClipNorm != 0 || o.Accumulate != 0) {
		return nil, fmt.Errorf("%s: ClipNorm and Accumulate need an Optimizer: without one the graph updates nothing", g.Path())
	}
	update := optim.Defaults(kind)
	update.ClipNorm, update.Accumulate = o.ClipNorm, o.Accumulate
	if err := canWrite(g.source.Files(), out); err != nil {
		return nil, err
	}
	adapters, err := adapter.ParseSpecs(o.Adapters)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), ofAdapters(err))
	}
	d, err := g.source.Derive(pipeline.DeriveOptions{
		Grad:   grad.Options{Loss: o.Loss, Params: o.Train, Frozen: o.Frozen, Adapters: adapters, Stop: o.Stop, Tie: o.Tie, Dims: g.dims, Dialect: grad.DialectONNX},
		Update: update,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), ofAdapters(err))
	}
	if err := d.Save(out); err != nil {
		return nil, err
	}
	return Open(out, nil)
}

// ofAdapters is an error that names DeriveOptions.Adapters where it is of these.
func ofAdapters(err error) error {
	if e, ok := errors.AsType[*adapter.Error](err); ok {
		return fmt.Errorf("DeriveOptions.Adapters %q: %s", e.Spec, e.Reason)
	}
	return err
}

// A Runtime is ONNX Runtime, loaded: what plans, predicts and runs.
type Runtime struct{ engine *runtime.Engine }

// LoadRuntime loads ONNX Runtime's library: the one named, else the one that the
// environment variable REMAT_ORT names, else the one that remat doctor finds.
func LoadRuntime(library string) (*Runtime, error) {
	engine, err := runtime.New(library)
	if err != nil {
		return nil, err
	}
	return &Runtime{engine}, nil
}

// Close unloads the library, where no other Runtime has it loaded; the second time it does
// nothing. Sessions must be closed before.
func (r *Runtime) Close() error { return r.engine.Close() }

// Version is that of ONNX Runtime, "1.31.1".
func (r *Runtime) Version() string { return r.engine.Env.Version() }

// Settings say under which settings of ONNX Runtime a step runs, on the CPU
// provider: a prediction holds for these.
type Settings struct {
	// Threads of one operator; 0: one.
	Threads int
	// Level is the optimization level: 0, 1 or 99.
	Level int
	// Batch, unless nil, has values of inputs by name, for sizes that data alone tells, such
	// as how many tokens stand for pictures; without it they are unknown.
	Batch map[string]Tensor
}

func (s Settings) threads() int { return max(s.Threads, 1) }

func (s Settings) check() error {
	if s.Threads < 0 {
		return fmt.Errorf("Settings.Threads is %d: want 0, for one, or more", s.Threads)
	}
	return nil
}

func (r *Runtime) options(g *Graph, s Settings) pipeline.Options {
	o := pipeline.Options{Dims: g.dims, Provider: ort.CPU, Threads: s.threads(), OptLevel: s.Level}
	if s.Batch != nil {
		o.Sizes = pipeline.SizesFor(r.engine, runtime.Options{Feed: s.Batch}, false)
	}
	return o
}

// Memory is what a step takes, in bytes.
type Memory struct {
	// LivePeak is the most that is allocated at one moment of the step.
	LivePeak int64
	// Parameters, State (of the optimizer) and Feeds are inputs and initializers,
	// Session is what ONNX Runtime holds beside them before a step.
	Parameters, State, Feeds, Session int64
	// Reserved is what the allocator takes from the system: for what of Session lies in
	// it, and for the live peak, in one slab.
	Reserved int64
	// Total is all of this together.
	Total int64
	// Exact: nothing had to be guessed; else all are lower bounds.
	Exact bool
}

// Predict says what ONNX Runtime will take for a step, without running it. It is of
// the graph that ONNX Runtime's optimizer makes of the file.
func (r *Runtime) Predict(g *Graph, s Settings) (Memory, error) {
	if err := s.check(); err != nil {
		return Memory{}, fmt.Errorf("%s: %w", g.Path(), err)
	}
	if err := g.read(); err != nil {
		return Memory{}, err
	}
	defer g.reading.Unlock()
	m, err := g.source.Sized(g.dims)
	if err != nil {
		return Memory{}, err
	}
	roles, _ := pipeline.FoundRoles(m, nil)
	p, err := pipeline.Predict(r.engine, m, roles, r.options(g, s), nil)
	if err != nil {
		return Memory{}, fmt.Errorf("%s: %w", g.Path(), err)
	}
	return memory(pipeline.TotalOf(p)), nil
}

func memory(t pipeline.Total) Memory {
	return Memory{
		LivePeak: t.Live, Parameters: t.Parameters, State: t.State, Feeds: t.Feeds, Session: t.Session,
		Reserved: t.Reserved, Total: t.Bytes(), Exact: t.Exact,
	}
}

// A Budget bounds a step of the written file: what it takes, in bytes, which the least
// work is to keep, 0 for no bound; or its work, within which it is to hold least.
type Budget struct {
	// Live bounds the live peak, Total that and all else; see Memory.
	Live, Total int64
	// Work, unless nil, bounds what is computed again, as a share of the plain step's
	// work. It does not go with the other two.
	Work *float64
}

// PlanOptions say how to plan.
type PlanOptions struct {
	// Strategy is one of Strategies, "full" or "every=2"; "": "optimal", the least
	// work within the budget, or without one the knee of the curve of peak against work.
	Strategy string
	Budget   Budget
	// Precision is the type to compute and keep values in: "fp16", "bf16", or "" for
	// float32, in which parameters always are. With StashOnly the graph computes in
	// float32, and what waits for backward waits in that type.
	Precision string
	StashOnly bool
	Settings  Settings
}

// A Strategy is a way to plan.
type Strategy struct {
	Usage string // as PlanOptions takes it, "every=K"
	Doc   string
}

// Strategies lists the strategies.
func Strategies() []Strategy {
	var list []Strategy
	for i := range planner.Solvers {
		list = append(list, Strategy{planner.Solvers[i].Usage(), planner.Solvers[i].Doc})
	}
	return list
}

// A Plan is what a graph's step keeps, what it computes again, and when.
type Plan struct {
	Strategy string
	// Before is what a step of the given graph takes, After a step of the graph that
	// Rewrite writes.
	Before, After Memory
	// LowerBound is a live peak below which no plan can be, in bytes.
	LowerBound int64
	// Overhead is the work that is done again, as a share of the step's.
	Overhead float64
	// Kept names the forward values that wait for backward.
	Kept []string
	// Notes say what passes did, and why one did less than it was asked.
	Notes []string
	// Limited: the context ended before the search did.
	Limited bool

	graph   *Graph
	planner *pipeline.Planner
	file    *pipeline.File
	budget  pipeline.Budget
}

// Plan plans for a training graph, within a budget that holds for the written file
// to the byte. Where none is found the error is a BudgetError or a TotalError, and
// the plan that comes with it misses the budget by least. The search ends with the
// best plan so far when the context does.
func (r *Runtime) Plan(ctx context.Context, g *Graph, o PlanOptions) (*Plan, error) {
	o.Strategy = cmp.Or(o.Strategy, "optimal")
	if err := o.Settings.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	if o.Budget.Live < 0 || o.Budget.Total < 0 {
		return nil, fmt.Errorf("%s: a budget of %d bytes: want 0, for none, or more", g.Path(), min(o.Budget.Live, o.Budget.Total))
	}
	if w := o.Budget.Work; w != nil && !(*w >= 0) { // or no number
		return nil, fmt.Errorf("%s: Budget.Work is %v: want a share of the step's work, 0 or more", g.Path(), *w)
	}
	if err := g.read(); err != nil {
		return nil, err
	}
	defer g.reading.Unlock()
	m, err := g.source.Sized(g.dims)
	if err != nil {
		return nil, err
	}
	options := r.options(g, o.Settings)
	options.Stop, options.TimeLimited = func() bool { return ctx.Err() != nil }, ctx.Done() != nil
	if half, err := pipeline.ParseHalf(o.Precision); err != nil {
		return nil, fmt.Errorf("precision %w", err)
	} else if half != onnx.Undefined {
		options.Precision = &precision.Options{To: half, StashOnly: o.StashOnly, Provider: kernels.CPU, Early: o.Strategy == "none"}
	} else if o.StashOnly {
		return nil, fmt.Errorf("%s: StashOnly needs a Precision, fp16 or bf16", g.Path())
	}
	budget := pipeline.Budget(o.Budget)
	p, err := pipeline.NewPlanner(r.engine, m, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	f, err := p.PlanWithin(o.Strategy, budget)
	if err != nil {
		err = fmt.Errorf("%s: %w", g.Path(), err)
	}
	if f == nil {
		return nil, err
	}
	plan := &Plan{
		Strategy: f.Plan.Strategy, Before: memory(pipeline.TotalOf(p.Before)), After: memory(pipeline.TotalOf(f.Prediction)),
		LowerBound: f.LowerBound, Overhead: f.Verdict.Overhead, Notes: append(slices.Clone(f.Plan.Notes), f.Applied()...),
		graph: g, planner: p, file: f, budget: budget,
	}
	_, plan.Limited = p.Limited()
	for _, v := range f.Plan.Kept(f.Problem()) {
		plan.Kept = append(plan.Kept, f.Problem().Values[v].Name)
	}
	return plan, err
}

// Rewrite writes the graph that follows the plan. It refers to the same weights as
// the given graph, so out has to be in that one's folder or in one above it.
func (p *Plan) Rewrite(out string) (*Graph, error) {
	if err := p.graph.read(); err != nil {
		return nil, err
	}
	defer p.graph.reading.Unlock()
	source := p.graph.source
	if err := canWrite(source.DataFiles(), out); err != nil {
		return nil, err
	}
	if err := p.file.Save(source, out, p.planner.Document(p.file, p.budget)); err != nil {
		return nil, err
	}
	return Open(out, nil)
}
