// Package pipeline is the way of a training graph to its file. Programs use it
// through package remat, the commands directly.
//
//	given ─▶ Variant ─▶ Candidate ─▶ File ─▶ finished File
//	         prepared   and a plan   written,  guarded, predicted
//	                                 predicted by what ONNX Runtime makes of it
//
// A graph has several variants (variants.go): as it is, and with what is wide
// computed in parts. A variant has candidates, plans by ascending work
// (candidates.go). The first whose file keeps the budget is the one (search.go).
package pipeline

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/quantize"
	"github.com/onnx-remat/remat/rewrite/upgrade"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Options say how a graph is prepared, planned and predicted. They are read only:
// what came of them is in the Variant.
type Options struct {
	Dims map[string]int64
	// Free are numbers of further dimensions that come with the feeds: Predict
	// needs them for sizes, ONNX Runtime is not told.
	Free map[string]int64
	// Sizes finds the shapes that data alone tells, for planning and prediction; nil: they
	// stay unknown.
	Sizes    Sizes
	Provider ort.Provider
	Threads  int
	// OptLevel is the optimization level under which the file will run.
	OptLevel int
	// Normalize says what is done to a foreign graph first; see Normalization.
	Normalize Normalization
	// DropOutputs are names of outputs to take off the graph.
	DropOutputs []string
	Divisions
	// Layers are budgets of what layers keep.
	Layers []LayerBudget
	// Prepack says whether kernels keep packed copies of constant weights.
	Prepack Prepacking
	// Like, unless nil, has the divisions that are the only ones that a search looks at
	// beside none: those that were best at another size.
	Like *Divisions
	// AsIs keeps a strategy from choosing Divisions by itself.
	AsIs  bool
	Roles *step.Roles
	Costs map[string]int64
	// Outputs says how next values leave the step; "": as the given file says.
	Outputs step.Outputs
	// WebGPU: the file may run on WebGPU, whose builds have no float64, and which refuses a
	// view along no axes.
	WebGPU bool
	// CUDA plans and predicts for the CUDA provider's kernels, whatever the
	// precision; without it a graph in half for CUDA does.
	CUDA bool
	// Workspace is what a node is predicted to borrow for cuDNN, in bytes, where no device
	// was asked.
	Workspace int64
	// GPU is which one a session is to run on, where there is one.
	GPU runtime.GPU
	// Precision says which half type to compute in; nil for none.
	Precision *precision.Options
	// Stop, unless nil, is asked while better plans are looked for: true ends that
	// with the best so far.
	Stop func() bool
	// TimeLimited: Stop may say so before the search has ended by itself, so what reaches
	// far at once is tried first.
	TimeLimited bool
	// most ends a search within a budget at plans of that overhead; 0: at none.
	most float64
	// unchanged: ONNX Runtime was seen to leave a file's graph as it is.
	unchanged bool
	// wide, unless nil, says which copies of quantized weights are made in slices.
	wide *quantize.Limits
	// Progress, unless nil, is called as planning comes on.
	Progress func(Progress)
	// After sees the model as each pass left it.
	After onnx.AfterPass
}

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
		for _, v := range n.Returns() {
			if !v.Type.Known() {
				_, err := infer.Model(m, infer.Options{Dims: dims, Strict: true})
				return err
			}
		}
	}
	return nil
}

// Order puts the nodes of a graph into the file order under which a step holds
// least, without recomputing anything.
func Order(m *onnx.Model, o Options) error {
	if _, err := infer.Model(m, infer.Options{Dims: o.Dims}); err != nil {
		return err
	}
	m.Graph.NameNodes()
	v := &Variant{Model: m, Options: o, roles: o.Roles}
	var err error
	if v.Analysis, err = v.analyze(m); err != nil {
		return err
	}
	plan, err := planner.Ordered(v.Analysis.Problem)
	if err != nil {
		return err
	}
	w := &rewriting{variant: v, model: m, analysis: v.Analysis}
	return w.follow(plan)
}
