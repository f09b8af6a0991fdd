package pipeline

// The passes that bring a graph into the form that is planned, as one table.
//
//	opset ─▶ trim ─▶ ordered ─▶ scatter ─▶ single ─▶ drop ─▶ batch ─▶ rows ─▶ chunk ─▶ tile ─▶ widen apart ─▶ statistics ─▶ optimize ─▶ unfold ─▶ fold ─▶ merge ─▶ broadcast ─▶ even pads ─▶ precision ─▶ sums ─▶ workspaces ─▶ updates
//
// After the last one no optimization level of ONNX Runtime finds anything to
// change, so the plan is made for the graph that will run. What recomputation,
// schedule and guards then do to a copy of it is in rewrite.go.

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/quantize"
	"github.com/onnx-remat/remat/rewrite/upgrade"
	"github.com/onnx-remat/remat/runtime"
)

// A pass is one row of the table.
type pass struct {
	name string
	// doc says what the pass does.
	doc string
	// after names passes that have to come before this one, and why says why.
	after []string
	why   string
	// asked reports that the options want the pass; nil: always.
	asked func(*Options) bool
	run   func(*preparation, *runtime.Engine) error
}

// passes in their order.
var passes = []pass{
	{name: "find roles", doc: "notes the roles that the given graph's structure tells", run: (*preparation).findRoles},
	{name: "opset", doc: "brings a graph of an opset before 13 to 13, as control dependencies need it", run: (*preparation).opset},
	{name: "trim", doc: "inputs that are left out behind the last one that a node reads are taken off its list",
		after: []string{"opset"}, why: "that leaves inputs out that became attributes, and no fusion is to meet one", run: (*preparation).trim},
	{name: "ordered", doc: "a file that remat wrote gets its nodes in the order in which they run, and loses the control dependencies of that rewriting",
		run: (*preparation).unorder},
	{name: "scatter", doc: "a sum of scattered zeros and another value is scattered into that value, but for sums of gradients that are scaled",
		after: []string{"ordered"}, why: "these are told by what reads them, without control dependencies", run: (*preparation).scatter},
	{name: "single", doc: "numbers in float64 become float32",
		after: []string{"scatter"}, why: "that infers the types",
		asked: func(o *Options) bool { return o.WebGPU }, run: (*preparation).single},
	{name: "drop", doc: "takes outputs off the graph, and what only they needed",
		after: []string{"find roles"}, why: "the roles of outputs that go are forgotten",
		asked: func(o *Options) bool { return len(o.DropOutputs) > 0 }, run: (*preparation).drop},
	{name: "scale", doc: "scales the loss of a step that float16 computes in parts",
		after: []string{"find roles", "drop"}, why: "outputs beside the gradients may forbid it",
		asked: func(o *Options) bool {
			return o.Precision.Scales() && (o.Batch != Division{} || o.Rows != Division{} || o.Chunk != Division{})
		}, run: (*preparation).scale},
	{name: "batch", doc: "computes forward and backward over slices of the batch",
		after: []string{"scatter", "drop", "scale"}, why: "what is divided along the batch has more scatters, outputs that stay are joined, and the gradients of a slice are to be scaled, not their sum",
		asked: func(o *Options) bool { return o.Batch != Division{} }, run: (*preparation).batch},
	{name: "rows", doc: "computes updates of the largest parameters in slices",
		after: []string{"scatter", "drop", "scale"}, why: "an output that stays would need its gradient whole, and a sum of it for loss scaling is taken in slices too",
		asked: func(o *Options) bool { return o.Rows != Division{} }, run: (*preparation).rows},
	{name: "chunk", doc: "computes the loss over slices of the tokens",
		after: []string{"batch", "rows"}, why: "each micro-batch has a loss, and updates take from the loss what a slice of it is computed from",
		asked: func(o *Options) bool { return o.Chunk != Division{} }, run: (*preparation).chunk},
	{name: "tile", doc: "computes wide products in parts",
		after: []string{"chunk"}, why: "tiles only what is still whole once the loss is sliced",
		asked: func(o *Options) bool { return o.Tile != Division{} }, run: (*preparation).tile},
	{name: "widen apart", doc: "each product that reads a quantized weight makes a wide copy of its own, of a large one in slices where the loss is",
		after: []string{"ordered", "chunk", "tile"}, why: "what is divided has more products, and these passes follow no control dependency",
		run: (*preparation).widenApart},
	{name: "statistics", doc: "a normalization by the batch's statistics, for which CUDA has no kernel, is computed with other operators",
		after: []string{"scatter", "batch"}, why: "what is divided along the batch may not have one",
		asked: func(o *Options) bool { return o.provider().Device }, run: (*preparation).statistics},
	{name: "optimize", doc: "passes a foreign graph through ONNX Runtime's own optimizer",
		after: []string{"ordered", "drop", "rows", "chunk", "tile", "statistics"}, why: "what these open to fusion is to be fused before it is planned, by a session that CUDA makes",
		run: (*preparation).optimize},
	{name: "keep roles", doc: "makes the roles that were noted count",
		after: []string{"find roles", "optimize"}, why: "the optimizer fuses what told them", run: (*preparation).keepRoles},
	{name: "unfold", doc: "large constants that ONNX Runtime would compute ahead are computed in the step",
		after: []string{"optimize"}, why: "the optimizer would take them for constants again", run: (*preparation).unfold},
	{name: "fold", doc: "small constants that ONNX Runtime would compute ahead are computed once for all",
		after: []string{"unfold"}, why: "constants that are computed in the step are none any more", run: (*preparation).fold},
	{name: "merge", doc: "equal constants and equal nodes become one, as ONNX Runtime makes them one",
		after: []string{"unfold", "fold"}, why: "barriers share constants, and so may what was computed", run: (*preparation).merge},
	{name: "broadcast", doc: "products of which CUDA's kernel would compute only some get an operand broadcast",
		after: []string{"merge"}, why: "the optimizer and the tiles make products, too",
		asked: func(o *Options) bool { return o.provider().Device }, run: (*preparation).broadcast},
	{name: "even pads", doc: "transposed convolutions that CUDA leaves to the host for their padding get another",
		after: []string{"merge"}, why: "types are inferred once the graph is as it will be",
		asked: func(o *Options) bool { return o.provider().Device }, run: (*preparation).evenPads},
	{name: "precision", doc: "converts to a half type",
		after: []string{"optimize", "merge"}, why: "the optimizer must not see the casts; the planner, which comes next, must",
		asked: func(o *Options) bool { return o.Precision != nil }, run: (*preparation).precise},
	{name: "sums", doc: "has large gradients summed up in the memory in which they are returned",
		after: []string{"keep roles", "tile", "precision"}, why: "what is divided is summed up, the optimizer would fuse it, and casts are no sums",
		run: (*preparation).sums},
	{name: "workspaces", doc: "notes what convolutions and recurrences borrow for cuDNN, where there is a GPU to ask",
		after: []string{"tile", "precision"}, why: "these make convolutions of other sizes and types",
		asked: func(o *Options) bool { return o.provider().Device }, run: (*preparation).noteWorkspaces},
	{name: "updates", doc: "analyzes the graph, and makes an update in place wait for every reader of what it writes over",
		after: []string{"precision", "sums"}, why: "what an update waits for belongs to the planning problem, and so does what lies in one memory", run: (*preparation).analyzeUpdates},
}

// A preparation is a variant that the passes are making.
type preparation struct {
	Variant
	// found are the roles in the graph as it was given.
	found *step.Roles
	// unscaled says why the loss is not scaled, where it was to be before it is divided.
	unscaled string
}

// Prepare runs the passes on a copy of the model and analyzes it. The model
// given is left as it is, and must outlive the result.
func Prepare(e *runtime.Engine, given *onnx.Model, o Options) (*Variant, error) {
	p, err := divide(e, given, o)
	if err != nil {
		return nil, err
	}
	return p.complete(e)
}

// lastDivision is the last pass that computes something in parts.
const lastDivision = "tile"

// divide runs the passes on a copy of the model until all that is divided is.
func divide(e *runtime.Engine, given *onnx.Model, o Options) (*preparation, error) {
	m, err := given.Clone()
	if err != nil {
		return nil, err
	}
	p := &preparation{Variant: Variant{Model: m, Options: o, roles: o.Roles}}
	return p, p.run(e, passes[:divisionsEnd()])
}

// complete runs the other passes, and analyzes the graph.
func (p *preparation) complete(e *runtime.Engine) (*Variant, error) {
	if err := p.run(e, passes[divisionsEnd():]); err != nil {
		return nil, err
	}
	if err := p.limit(); err != nil {
		return nil, err
	}
	p.castsOnce = castsOnce(p.Analysis)
	return &p.Variant, nil
}

// divisionsEnd is how many passes it takes until all that is divided is.
func divisionsEnd() int {
	return 1 + slices.IndexFunc(passes, func(p pass) bool { return p.name == lastDivision })
}

// run runs those of some passes that the options ask for.
func (p *preparation) run(e *runtime.Engine, list []pass) error {
	for _, pass := range list {
		if pass.asked != nil && !pass.asked(&p.Options) {
			continue
		}
		if err := pass.run(p, e); err != nil {
			return err
		}
		if err := p.Options.After.See(pass.name, p.Model); err != nil {
			return err
		}
	}
	return nil
}

// note adds the report of a pass that found something to do.
func (p *preparation) note(r rewrite.Report) {
	if r.Requested > 0 {
		p.Reports = append(p.Reports, r)
	}
}

// IsOurs reports a file that remat derived or rewrote.
func IsOurs(m *onnx.Model) bool {
	_, ok := m.Metadata(VersionKey)
	return ok
}

// prepared are the passes whose control dependencies belong to a prepared graph: they
// stay when a file is planned anew.
var prepared = []string{optim.Pass, "batch", "chunk", "tile", "rows", precision.CastPass}

// unorder lets planning start from the order that a file of remat's runs in.
func (p *preparation) unorder(*runtime.Engine) error {
	if !IsOurs(p.Model) {
		return nil
	}
	if _, ok := p.Model.Metadata(OrderedKey); ok {
		p.Model.Graph.Nodes = rewrite.RunOrder(p.Model.Graph)
	}
	control.Lift(p.Model.Graph, prepared...)
	if quantize.Together(p.Model.Graph) {
		normalize.MergeEqual(p.Model.Graph)
	}
	return nil
}

func (p *preparation) widenApart(*runtime.Engine) error {
	switch blocks := quantize.InBlocks(p.Model.Graph); {
	case blocks && p.Options.provider().Device:
		return errors.New("the CUDA provider has no kernel for weights in blocks: use the CPU, or a model whose weights are floats, derived without --quantize-frozen")
	case blocks && p.Options.Precision != nil:
		return errors.New("--precision: a step with weights in blocks is predicted exactly in float32 only: leave it out, or take a model whose weights are floats, derived without --quantize-frozen")
	}
	if p.Options.Chunk != (Division{}) && quantize.Widens(p.Model.Graph) {
		if err := p.widenInSlices(); err != nil {
			return err
		}
	}
	return quantize.Apart(p.Model.Graph)
}

func (p *preparation) widenInSlices() error {
	types, err := infer.Model(p.Model, infer.Options{Dims: p.Options.Dims})
	if err != nil {
		return err
	}
	limits := quantize.Large
	if p.Options.wide != nil {
		limits = *p.Options.wide
	}
	n, err := quantize.Sliced(p.Model.Graph, types, limits)
	p.note(rewrite.Report{Pass: "slice weights", Requested: n, Applied: n})
	return err
}

// opset brings a graph to the opset that control dependencies need.
func (p *preparation) opset(*runtime.Engine) error {
	return upgrade.Model(p.Model, control.MinOpset)
}

func (p *preparation) trim(*runtime.Engine) error {
	p.Model.Graph.TrimInputs()
	return nil
}

func (p *preparation) scatter(*runtime.Engine) error {
	if err := p.inferTypes(); err != nil {
		return err
	}
	n := rewrite.ScatterInto(p.Model.Graph)
	if p.Options.Precision.Scales() {
		apart, err := optim.Apart(p.Model)
		if err != nil {
			return err
		}
		n = max(n-apart, 0)
	}
	p.note(rewrite.Report{Pass: "scatter", Requested: n, Applied: n})
	p.note(rewrite.Races(p.Model.Graph))
	return nil
}

func (p *preparation) single(*runtime.Engine) error {
	report, err := rewrite.Single(p.Model.Graph)
	p.note(report)
	return err
}

func (p *preparation) drop(*runtime.Engine) error {
	for _, glob := range p.Options.DropOutputs {
		if err := dropOutputs(p.Model.Graph, glob); err != nil {
			return err
		}
	}
	return p.forgetRoles()
}

// dropOutputs takes the outputs that match off the graph, and what only they
// needed.
func dropOutputs(g *onnx.Graph, glob string) error {
	if _, err := path.Match(glob, ""); err != nil {
		return fmt.Errorf("--drop-output %q: not a pattern", glob)
	}
	before := len(g.Outputs)
	for i := before - 1; i >= 0; i-- {
		if planner.Match(glob, g.Outputs[i].Name) {
			g.RemoveOutput(i)
		}
	}
	if len(g.Outputs) == before {
		return fmt.Errorf("--drop-output %s: the graph has no such output", glob)
	}
	g.RemoveDead()
	return nil
}

// optimize replaces the model by what ONNX Runtime's optimizer leaves of it.
func (p *preparation) optimize(e *runtime.Engine) error {
	level, err := p.level()
	if err != nil || level < 0 {
		return err
	}
	p.Model.Graph.NameNodes()
	m, err := e.Optimize(p.Model, runtime.OptimizeOptions{
		Level: level, Provider: p.Options.Provider, Dims: p.Options.Dims, Disabled: notPortable,
	})
	if err != nil {
		return fmt.Errorf("normalizing: %w", err)
	}
	for _, entry := range p.Model.Proto.GetMetadataProps() {
		m.SetMetadata(entry.GetKey(), entry.GetValue())
	}
	keepNotes(p.Model.Graph, m.Graph)
	p.Model = m
	return nil
}

// keepNotes notes again what remat's passes noted of nodes that ONNX Runtime left, and the module
// of those that it made of others, too: they return what such a node did.
func keepNotes(before, after *onnx.Graph) {
	for _, n := range after.Nodes {
		for _, o := range n.Returns() {
			v := before.Value(o.Name)
			if v == nil || v.Producer == nil {
				continue
			}
			was := v.Producer
			n.SetModule(was.Module())
			if was.OpType() != n.OpType() || was.Domain() != n.Domain() {
				continue
			}
			for _, entry := range was.Proto.GetMetadataProps() {
				if strings.HasPrefix(entry.GetKey(), "remat.") {
					n.SetMetadata(entry.GetKey(), entry.GetValue())
				}
			}
		}
	}
}

// level is the optimization level to normalize at, -1 for none.
func (p *preparation) level() (int, error) {
	switch p.Options.Normalize {
	case Off:
		return -1, nil
	case ORT1:
		return 1, nil
	case ORT99:
		return 99, nil
	case Auto, "":
		if IsOurs(p.Model) {
			return -1, nil
		}
		return 99, nil
	}
	return 0, fmt.Errorf("--normalize %q: want auto, off, 1 or 99", p.Options.Normalize)
}

func (p *preparation) unfold(*runtime.Engine) error {
	if err := p.inferTypes(); err != nil {
		return err
	}
	_, err := rewrite.Unfold(p.Model.Graph)
	return err
}

// fold lets ONNX Runtime compute what depends on constants alone. Values that it
// cannot give back stay.
func (p *preparation) fold(e *runtime.Engine) error {
	if e = p.Options.cpuEngine(e); e == nil {
		return nil
	}
	return fold(e, p.Model, rewrite.Foldable(p.Model.Graph))
}

// fold puts constants in the place of values, all of which depend on constants alone.
func fold(e *runtime.Engine, model *onnx.Model, values []*onnx.Value) error {
	if len(values) == 0 {
		return nil
	}
	m, err := model.CloneOf(values)
	if err != nil {
		return err
	}
	defer m.Close()
	m.Proto.MetadataProps = nil // speaks of what is gone
	computed, err := e.Evaluate(m)
	if err != nil {
		return fmt.Errorf("computing constants: %w", err)
	}
	for _, v := range values {
		if t, ok := computed[v.Name]; ok {
			rewrite.Fold(model.Graph, v, onnx.NewTensor(t.Type, t.Shape, t.Data))
		}
	}
	model.Graph.RemoveDead()
	return nil
}

func (p *preparation) merge(*runtime.Engine) error {
	rewrite.ShareConstants(p.Model.Graph)
	normalize.MergeEqual(p.Model.Graph)
	p.Model.Graph.NameNodes()
	return runtime.DescribeFeeds(p.Model)
}

func (p *preparation) broadcast(*runtime.Engine) error { return p.legalized(rewrite.Broadcast) }

func (p *preparation) evenPads(*runtime.Engine) error { return p.legalized(rewrite.EvenPads) }

func (p *preparation) statistics(*runtime.Engine) error { return p.legalized(rewrite.Statistics) }

// legalized replaces what CUDA has no right kernel for, by one rule.
func (p *preparation) legalized(rule legalization) error {
	r, err := legalize(p.Model, p.Options.Dims, rule)
	if p.note(r); r.Requested > 0 {
		p.Model.Graph.NameNodes()
	}
	return err
}

// ForDevice replaces what CUDA has no kernel for in a model that is run and not planned.
func ForDevice(m *onnx.Model, dims map[string]int64) error {
	_, err := legalize(m, dims, rewrite.Statistics)
	return err
}

type legalization func(*onnx.Graph, build.Typer) (rewrite.Report, error)

func legalize(m *onnx.Model, dims map[string]int64, rule legalization) (rewrite.Report, error) {
	types, err := infer.Model(m, infer.Options{Dims: dims})
	if err != nil {
		return rewrite.Report{}, err
	}
	return rule(m.Graph, types)
}

// unfit reports a graph with a node that CUDA computes wrongly or not at all.
func unfit(g *onnx.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *onnx.Node) bool { return traits.WhyShort(n) != "" || traits.ComputesStatistics(n) })
}

func (p *preparation) analyzeUpdates(*runtime.Engine) error {
	roles, stated, err := analysis.Stated(p.Model, p.roles)
	if err != nil {
		return err
	}
	if !stated {
		if p.Analysis, err = p.analyze(p.Model); err != nil {
			return err
		}
		roles = p.Analysis.Roles
	}
	switch r, err := guardUpdates(p.Model, roles); {
	case err != nil:
		return err
	case r.Applied > 0:
		p.Model.Graph.NameNodes()
	case p.Analysis != nil:
		return nil
	}
	p.Analysis, err = p.analyze(p.Model)
	return err
}

func (p *preparation) noteWorkspaces(e *runtime.Engine) error {
	e.NoteWorkspaces(p.Model, p.Options.GPU)
	return nil
}

func (p *preparation) inferTypes() error {
	_, err := infer.Model(p.Model, infer.Options{Dims: p.Options.Dims})
	return err
}
