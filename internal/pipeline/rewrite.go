package pipeline

// Writing a plan: recomputation, the schedule, and guards in rounds, until
// nothing is left that ONNX Runtime's highest level would fuse.

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A rewriting is a copy of a variant's graph on its way to a file.
type rewriting struct {
	variant  *Variant
	model    *onnx.Model
	analysis *analysis.Analysis // of model before it is rewritten
	target   *rewrite.Target
	prog     *planner.Program
	order    []*onnx.Node     // in which the nodes run
	reports  []rewrite.Report // of what came before the schedule
	// scheduled are the reports of the schedule as it is now.
	scheduled []rewrite.Report
	// before are nodes of edges that were shortened, which would run right before another one.
	before map[*onnx.Node][]*onnx.Node
	// ran is the plan's schedule as the graph runs it.
	ran    []int
	hidden []hidden // see hide.go
}

// follow applies a plan, and leaves the nodes in the file order that makes ONNX
// Runtime follow it.
func (w *rewriting) follow(plan *planner.Plan) (err error) {
	if w.prog, err = planner.Expand(w.analysis.Problem, plan); err != nil {
		return err
	}
	w.target = &rewrite.Target{Model: w.model, Nodes: w.analysis.Nodes, Values: w.analysis.Values}
	order, report, err := rewrite.Recompute(w.target, w.prog)
	if err != nil {
		return err
	}
	w.reports = append(w.reports, report)
	w.model.Graph.Nodes = order
	if err := w.passed("recompute"); err != nil {
		return err
	}
	guarded, err := guardUpdates(w.model, w.analysis.Roles)
	if err != nil {
		return err
	}
	if len(guarded.Skipped) > 0 {
		w.reports = append(w.reports, guarded)
	}
	if err := w.passed("updates"); err != nil {
		return err
	}
	if err := w.holdOnce(); err != nil {
		return err
	}
	if w.order, err = w.hide(); err != nil {
		return err
	}
	if err := w.schedule(); err != nil {
		return err
	}
	return w.seal()
}

// maxGuards bounds how often the written graph is guarded anew.
const maxGuards = 6

// guard guards what ONNX Runtime's highest level would fuse, in rounds, until it
// leaves the graph as the schedule wants it. It reports whether it changed the
// graph, and whether the highest level leaves all of it unchanged.
func (w *rewriting) guard(e *runtime.Engine) (guarded, unchanged bool, err error) {
	for range maxGuards {
		left, same, err := w.survivors(e)
		if err != nil {
			return false, false, err
		}
		unchanged = same
		order, more, err := rewrite.Guard(w.model.Graph, w.order, left)
		if err != nil {
			return false, false, err
		}
		if w.order = order; more == 0 {
			break
		}
		guarded = true
		if err := w.schedule(); err != nil {
			return false, false, err
		}
		if err := w.seal(); err != nil {
			return false, false, err
		}
	}
	return guarded, unchanged, nil
}

// seal makes the scheduled graph one that can be saved. What ONNX Runtime fuses
// depends on the shapes that it knows, and guards' names on the constants that are
// there, so both are as they will be before it is asked.
func (w *rewriting) seal() error {
	rewrite.ShareConstants(w.model.Graph) // those of barriers, as ONNX Runtime does: a session copies each
	w.ran = w.prog.Schedule(w.analysis.Problem, w.executed())
	w.model.SetMetadata(OrderedKey, "true")
	w.model.Graph.AnnotateTypes()
	return w.model.Check()
}

// settle brings the edges of a file for CUDA or WebGPU into the form that the device takes,
// in its stream if asked, and reports whether there were any.
func (w *rewriting) settle(stream bool) (settled bool, err error) {
	o, g := &w.variant.Options, w.model.Graph
	// An edge that reads what a step overwrites would have to come before.
	i := slices.IndexFunc(g.Inputs, func(v *onnx.Value) bool { return !v.IsConstant() && w.analysis.Roles.New[v.Name] == "" })
	if i >= 0 && stream {
		if settled, err = control.Stream(w.model, g.Inputs[i]); err != nil {
			return false, err
		}
	}
	if o.WebGPU {
		given, err := control.GiveAxes(g)
		if err != nil {
			return false, err
		}
		settled = settled || given
	}
	if settled {
		rewrite.ShareConstants(g)
		g.AnnotateTypes()
	}
	return settled, nil
}

// passed shows the model to whoever asked to see it after each pass.
func (w *rewriting) passed(name string) error { return w.variant.Options.After.See(name, w.model) }

// executed lists the places of the instances that run, or would if edges were not shortened, in
// their order.
func (w *rewriting) executed() []int {
	at := onnx.Places(w.target.Instances)
	list := make([]int, 0, len(at))
	runs := func(n *onnx.Node) {
		if i, ok := at[n]; ok {
			list = append(list, i)
		}
	}
	for _, n := range w.order {
		for _, gone := range w.before[n] {
			runs(gone)
		}
		runs(n)
	}
	return list
}

// shorten brings the edges of the scheduled graph into their short form; nodes that are gone
// are none of the schedule's.
func (w *rewriting) shorten() {
	was := len(w.order)
	var before map[*onnx.Node][]*onnx.Node
	w.order, before = control.Shorten(w.model, w.order)
	for i := range w.scheduled {
		if r := &w.scheduled[i]; r.Pass == "schedule" {
			r.Requested -= was - len(w.order)
			r.Applied -= was - len(w.order)
		}
	}
	for n, gone := range before {
		if w.before == nil {
			w.before = map[*onnx.Node][]*onnx.Node{}
		}
		w.before[n] = append(w.before[n], gone...)
	}
}

// maxMerges bounds how often the file is ordered anew because control edges turn out to
// be equal to what is there.
const maxMerges = 3

// schedule brings the nodes into the file order under which they run in the order
// wanted, and notes that order with its control edges.
func (w *rewriting) schedule() error {
	order := w.order
	for try := 0; ; try++ {
		order, _ = w.mergeEqual(order)
		scheduled, reports, err := rewrite.Schedule(w.model, order)
		if err != nil {
			return err
		}
		w.order, w.scheduled = scheduled, reports
		if try == maxMerges {
			break
		}
		file := w.model.Graph.Nodes
		var merged int
		if order, merged = w.mergeEqual(slices.Clone(scheduled)); merged == 0 {
			w.model.Graph.Nodes = file
			break
		}
	}
	w.shorten()
	return w.passed("schedule")
}

// mergeEqual merges what ONNX Runtime would merge, so that the order stands, and says how
// many nodes it merged. They are not fewer where equal nodes make outputs.
func (w *rewriting) mergeEqual(order []*onnx.Node) ([]*onnx.Node, int) {
	w.model.Graph.Nodes = order
	rewrite.ShareConstants(w.model.Graph)
	merged := normalize.MergeEqual(w.model.Graph)
	return w.model.Graph.Nodes, merged
}

// guardUpdates makes every reader of a parameter, clones included, come before
// the parameter's update by data, so that it may be written in place, and
// reports how many readers it led. In a foreign graph where no order allows
// that, the value is left out: whoever runs the file must not bind one buffer
// to the old and the new value, and remat's runtime copies.
func guardUpdates(m *onnx.Model, roles step.Roles) (rewrite.Report, error) {
	report := rewrite.Report{Pass: "updates"}
	next := nextValues(m.Graph, roles)
	if len(next) == 0 {
		return report, nil
	}
	led, refused, err := optim.Guard(m, next)
	for _, r := range refused {
		report.Skipped = append(report.Skipped, rewrite.Skip{What: r.Value,
			Why: "not to be updated in place: " + r.Why()})
	}
	report.Requested, report.Applied = led+len(refused), led
	return report, err
}

// nextValues maps inputs to the computed values that are written over them.
func nextValues(g *onnx.Graph, roles step.Roles) map[*onnx.Value]*onnx.Value {
	next := map[*onnx.Value]*onnx.Value{}
	for in, out := range roles.New {
		if v, w := g.Value(in), g.Value(out); v != nil && v.Init == nil && w != nil && w.Producer != nil {
			next[v] = w
		}
	}
	return next
}

// survivors are what ONNX Runtime's highest level leaves of the graph; same
// reports that it changes nothing. Of many layers and micro-batches it is asked about a few.
func (w *rewriting) survivors(e *runtime.Engine) (left *rewrite.Left, same bool, err error) {
	for beside := rewrite.OneBeside; left == nil && err == nil; beside++ {
		left, same, err = w.survivorsBeside(e, beside)
	}
	return left, same, err
}

// survivorsBeside is survivors, asked with so much beside what stands for others; nil where that does not tell.
func (w *rewriting) survivorsBeside(e *runtime.Engine, beside rewrite.Beside) (left *rewrite.Left, same bool, err error) {
	rerolled := rewrite.Reroll(w.model.Graph, beside)
	d, err := e.Left(w.model, ort.SessionOptions{
		Level: 99, Threads: 1, Provider: ort.CPU, Dims: w.variant.Options.Dims, DisabledOptimizers: notPortable,
		Purpose: "find fusions",
	})
	if err != nil {
		rerolled.Restore()
		return nil, false, err
	}
	left, same = rewrite.NewLeft(d.Graph), unchanged(w.model.Graph, d.Graph)
	return rerolled.Unroll(left), same, d.Close()
}

// unchanged reports that two graphs have the same nodes, attributes and edges,
// in whatever order.
func unchanged(a, b *onnx.Graph) bool {
	gone, ok := goneFrom(a, b, sameValue)
	return ok && len(gone) == 0
}

// goneFrom lists the nodes of a that b has not, and reports that b has no other nodes than a's, with the
// attributes and edges that they have there, in whatever order.
func goneFrom(a, b *onnx.Graph, same func(v, w *onnx.Value) bool) (gone []*onnx.Node, ok bool) {
	at := make(map[string]*onnx.Node, len(b.Nodes))
	for _, n := range b.Nodes {
		at[n.Name()] = n
	}
	for _, n := range a.Nodes {
		m := at[n.Name()]
		if m == nil {
			gone = append(gone, n)
			continue
		}
		if n.OpType() != m.OpType() || n.Domain() != m.Domain() || !sameAttributes(n, m) ||
			!slices.EqualFunc(n.Inputs, m.Inputs, same) || !slices.EqualFunc(n.Outputs, m.Outputs, same) {
			return nil, false
		}
		delete(at, n.Name()) // a name stands once
	}
	return gone, len(at) == 0 && len(a.Nodes)-len(gone) == len(b.Nodes)
}

// sameAttributes reports that m has n's attributes; ONNX Runtime adds defaults.
func sameAttributes(n, m *onnx.Node) bool {
	return !slices.ContainsFunc(n.Proto.GetAttribute(), func(a *onnxpb.AttributeProto) bool { return !proto.Equal(a, m.Attr(a.GetName())) })
}

// sameName reports values of one name, or none.
func sameName(v, w *onnx.Value) bool {
	if v == nil || w == nil {
		return v == w
	}
	return v.Name == w.Name
}

// sameValue reports values of one name, or two constants of one type: of equal
// ones ONNX Runtime keeps one.
func sameValue(v, w *onnx.Value) bool {
	return sameName(v, w) || v != nil && w != nil && v.IsConstant() && w.IsConstant() && v.Type.Same(w.Type)
}
