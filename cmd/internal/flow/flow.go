// Package flow is the way through the pipeline that the commands share: a file
// is loaded and brought into the form that no optimizer changes any more, made
// into a planning problem, planned, rewritten, and predicted as written.
//
//	Load ─▶ Prepared ─▶ Plan ─▶ Rewrite ─▶ Predict
//	            ▲                  │
//	            └─── next plan ────┘   until the written file keeps the budget
package flow

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/upgrade"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Options are what the commands have in common.
type Options struct {
	Dims map[string]int64
	// Free are numbers of further dimensions that come with the feeds: Predict
	// needs them for sizes, ONNX Runtime is not told.
	Free     map[string]int64
	Provider ort.Provider
	Threads  int
	// OptLevel is the optimization level under which the file will run.
	OptLevel int
	// Normalize says what is done to a foreign graph first; see Normalization.
	Normalize Normalization
	// DropOutputs are names of outputs to take off the graph.
	DropOutputs []string
	// Chunk is the number of slices in which the loss is computed: 0 one,
	// AutoChunk as many as make a slice no larger than what it comes from and
	// leave its products fast, FineChunk whether they do or not, CoarseChunk
	// fewer. What is prepared says the number that it came to.
	Chunk int
	// Tile is the number of parts in which wide products inside layers are
	// computed: 0 one, AutoChunk as many as their outermost axis allows.
	Tile int
	// Rows is the number of slices in which the next values of the largest
	// parameters and their state are computed, gradients included: 0 one,
	// AutoChunk about sixteen.
	Rows int
	// Prepack says whether kernels keep packed copies of constant weights.
	Prepack Prepacking
	// AsIs keeps a strategy from choosing Chunk, Tile and Rows by itself.
	AsIs  bool
	Roles *analysis.Roles
	Costs map[string]int64
	// CUDA plans and predicts for the CUDA provider's kernels, whatever the
	// precision; without it a graph in half for CUDA does.
	CUDA bool
	// Precision says which half type to compute in; nil for none.
	Precision *precision.Options
	// Stop, unless nil, is asked while better plans are looked for: true ends that
	// with the best so far.
	Stop func() bool
	// Progress, unless nil, is called as planning comes on.
	Progress func(Progress)
	// After, unless nil, is called after each pass with the model as the pass
	// left it; an error ends the work.
	After func(pass string, m *onnx.Model) error
}

// AutoChunk lets a pass choose the number of parts; the others are for the loss.
const AutoChunk, CoarseChunk, FineChunk = -1, -2, -3

// Parts reports a number of slices or parts that a plan's file can say.
func Parts(n int) bool { return n == 0 || n == AutoChunk || n >= 2 }

// Normalization says how a graph is brought into the form that ONNX Runtime's
// optimizer leaves alone, so that it runs in the order that the file says.
type Normalization string

// Kinds of normalization. Auto leaves files that remat wrote as they are and
// passes foreign ones through ONNX Runtime's own optimizer, level 99, offline.
const (
	Auto  Normalization = "auto"
	Off   Normalization = "off"
	ORT1  Normalization = "1"
	ORT99 Normalization = "99"
)

// notPortable names optimizers whose results run on the CPU provider alone.
var notPortable = []string{"NchwcTransformer"}

// A Prepared graph is normalized, typed and analyzed.
type Prepared struct {
	Model    *onnx.Model
	Analysis *analysis.Analysis
	Options  Options
	Reports  []rewrite.Report
	// Precise is what the precision pass did, nil without it.
	Precise *precision.Report
	// found are the roles in the graph as it was given.
	found *analysis.Roles

	// added is the work that computing in parts adds, in FLOPs.
	added int64
	// reread is how many bytes computing in parts reads again.
	reread int64
	// pinned is the planning problem in which casts run only once; see problems.
	pinned *planner.Problem
	// look, unless nil, is asked once the model is first written, before ONNX
	// Runtime is: false ends the rewriting there, as the file misses its budget.
	look func() (bool, error)
	// settled: ONNX Runtime's highest level was asked and changes nothing.
	// guarded: the model was written again with guards, after look saw it.
	settled, guarded bool
	// ran is the plan's schedule as the rewritten file runs it.
	ran []int
}

// Open loads and checks a file and infers its types.
func Open(path string, dims map[string]int64) (*onnx.Model, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	if err := Type(m, dims); err != nil {
		m.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Type checks a model as it was loaded and infers its types.
func Type(m *onnx.Model, dims map[string]int64) error {
	if err := m.Check(); err != nil {
		return err
	}
	if _, err := upgrade.Functions(m); err != nil {
		return err
	}
	_, err := infer.Model(m, infer.Options{Dims: dims})
	return err
}

// Known returns an error when an operator is known neither by its row nor by
// the types that the file declares for its outputs.
func Known(m *onnx.Model, dims map[string]int64) error {
	for _, n := range m.Graph.Nodes {
		for _, v := range n.Outputs {
			if v != nil && !v.Type.Known() {
				_, err := infer.Model(m, infer.Options{Dims: dims, Strict: true})
				return err
			}
		}
	}
	return nil
}

// Analyze makes the planning problem of the graph as it stands.
func (p *Prepared) Analyze() error {
	a, err := analysis.Analyze(p.Model, analysis.Options{
		Dims: p.Options.Dims, Threads: p.Options.Threads, CUDA: p.Options.onCUDA(), Roles: p.Options.Roles, Costs: p.Options.Costs,
	})
	if err != nil {
		return err
	}
	a.Problem.Added = p.added
	a.Problem.Reread = int64(float64(p.reread*balance) * a.CostOfFLOP())
	a.Problem.StopWhen(p.Options.Stop)
	p.Analysis = a
	return nil
}

// Order puts the nodes of a graph into the file order under which a step holds
// least, without recomputing anything.
func Order(m *onnx.Model, o Options) error {
	if _, err := infer.Model(m, infer.Options{Dims: o.Dims}); err != nil {
		return err
	}
	m.Graph.NameNodes()
	p := &Prepared{Model: m, Options: o}
	if err := p.Analyze(); err != nil {
		return err
	}
	plan, err := planner.Solve(p.Analysis.Problem, "none", 0)
	if err != nil {
		return err
	}
	return p.Rewrite(nil, plan)
}
