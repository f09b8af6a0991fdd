package flow

// Writing a plan: recomputation, the schedule, and guards in rounds, until
// nothing is left that ONNX Runtime's highest level would fuse.

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// maxGuards bounds how often the written graph is guarded anew.
const maxGuards = 6

// Rewrite applies a plan to the prepared graph, which is used up, and leaves
// the nodes in the file order that makes ONNX Runtime follow the plan. With an
// engine at hand, what its highest level would fuse in the result is guarded.
func (p *Prepared) Rewrite(e *runtime.Engine, plan *planner.Plan) error {
	prog, err := planner.Expand(p.Analysis.Problem, plan)
	if err != nil {
		return err
	}
	target := &rewrite.Target{Model: p.Model, Nodes: p.Analysis.Nodes, Values: p.Analysis.Values}
	order, report, err := rewrite.Recompute(target, prog)
	if err != nil {
		return err
	}
	p.Reports = append(p.Reports, report)
	p.Model.Graph.Nodes = order
	if err := p.passed("recompute"); err != nil {
		return err
	}
	if _, err = p.guardUpdates(); err != nil {
		return err
	}
	if err := p.passed("updates"); err != nil {
		return err
	}
	if err := p.holdOnce(); err != nil {
		return err
	}
	order = p.Model.Graph.Nodes
	e = p.Options.cpuEngine(e)
	var reports []rewrite.Report
	for round := 0; ; round++ {
		if order, reports, err = p.schedule(order); err != nil {
			return err
		}
		if err := p.passed("schedule"); err != nil {
			return err
		}
		if e == nil || round == maxGuards {
			break
		}
		p.Model.Graph.AnnotateTypes()         // what ONNX Runtime fuses depends on the shapes that it knows
		rewrite.ShareConstants(p.Model.Graph) // whether somebody looks or not: names are made from those that are there
		if p.look != nil && round == 0 {
			if ok, err := p.look(); err != nil {
				return err
			} else if !ok {
				break
			}
		}
		left, same, err := p.survivors(e)
		if err != nil {
			return err
		}
		p.settled, p.guarded = same, round > 0
		more := 0
		if order, more, err = rewrite.Guard(p.Model.Graph, order, left); err != nil {
			return err
		}
		if more == 0 {
			break
		}
	}
	rewrite.ShareConstants(p.Model.Graph) // those of barriers, as ONNX Runtime does: a session copies each
	p.Reports = append(p.Reports, reports...)
	p.ran = prog.Schedule(p.Analysis.Problem, executed(order, target.Instances))
	p.Model.SetMetadata(OrderedKey, "true")
	p.Model.Graph.AnnotateTypes()
	return p.Model.Check()
}

// executed lists the places of those instances that are in the order of nodes.
func executed(order, instances []*onnx.Node) []int {
	at := make(map[*onnx.Node]int, len(instances))
	for i, n := range instances {
		at[n] = i
	}
	list := make([]int, 0, len(instances))
	for _, n := range order {
		if i, ok := at[n]; ok {
			list = append(list, i)
		}
	}
	return list
}

// maxMerges bounds how often the file is ordered anew because anchors turn out to
// be equal to what is there.
const maxMerges = 3

// schedule brings the nodes into the file order under which they run in the order
// given, and returns that order with its anchors.
func (p *Prepared) schedule(order []*onnx.Node) ([]*onnx.Node, []rewrite.Report, error) {
	for try := 0; ; try++ {
		scheduled, reports, err := rewrite.Schedule(p.Model, p.mergeEqual(order))
		if err != nil || try == maxMerges {
			return scheduled, reports, err
		}
		file := p.Model.Graph.Nodes
		if order = p.mergeEqual(slices.Clone(scheduled)); len(order) == len(scheduled) {
			p.Model.Graph.Nodes = file
			return scheduled, reports, nil
		}
	}
}

// mergeEqual merges what ONNX Runtime would merge, so that the order stands.
func (p *Prepared) mergeEqual(order []*onnx.Node) []*onnx.Node {
	p.Model.Graph.Nodes = order
	rewrite.ShareConstants(p.Model.Graph)
	normalize.MergeEqual(p.Model.Graph)
	return p.Model.Graph.Nodes
}

// guardUpdates makes every reader of a parameter, clones included, come before
// the parameter's update by data, so that it may be written in place, and
// returns how many readers it led. In a foreign graph where no order allows
// that, the runtime copies instead.
func (p *Prepared) guardUpdates() (int, error) {
	g := p.Model.Graph
	next := map[*onnx.Value]*onnx.Value{}
	for in, out := range p.Analysis.Roles.New {
		if v, w := g.Value(in), g.Value(out); v != nil && v.Init == nil && w != nil && w.Producer != nil {
			next[v] = w
		}
	}
	if len(next) == 0 {
		return 0, nil
	}
	n, err := optim.Guard(p.Model, next)
	var impossible *optim.OrderError
	if err != nil && !errors.As(err, &impossible) {
		return 0, err
	}
	return n, nil
}

// survivors are what ONNX Runtime's highest level leaves of the graph; same
// reports that it changes nothing.
func (p *Prepared) survivors(e *runtime.Engine) (left *rewrite.Left, same bool, err error) {
	d, err := e.Dump(p.Model, ort.SessionOptions{
		Level: 99, Threads: 1, Provider: ort.CPU, Dims: p.Options.Dims, DisabledOptimizers: notPortable,
		Purpose: "find fusions",
	})
	if err != nil {
		return nil, false, err
	}
	return rewrite.NewLeft(d.Graph), unchanged(p.Model.Graph, d.Graph), d.Close()
}

// unchanged reports that two graphs have the same nodes, attributes and edges,
// in whatever order.
func unchanged(a, b *onnx.Graph) bool {
	if len(a.Nodes) != len(b.Nodes) {
		return false
	}
	at := make(map[string]*onnx.Node, len(b.Nodes))
	for _, n := range b.Nodes {
		at[n.Name()] = n
	}
	for _, n := range a.Nodes {
		m := at[n.Name()]
		if m == nil || n.OpType() != m.OpType() || n.Domain() != m.Domain() || !sameAttributes(n, m) ||
			!slices.EqualFunc(n.Inputs, m.Inputs, sameValue) || !slices.EqualFunc(n.Outputs, m.Outputs, sameValue) {
			return false
		}
		delete(at, n.Name()) // a name stands once
	}
	return true
}

// sameAttributes reports that m has n's attributes; ONNX Runtime adds defaults.
func sameAttributes(n, m *onnx.Node) bool {
	for _, a := range n.Proto.GetAttribute() {
		if !proto.Equal(a, m.Attr(a.GetName())) {
			return false
		}
	}
	return true
}

// sameValue reports values of one name, or two constants of one type: of equal
// ones ONNX Runtime keeps one.
func sameValue(v, w *onnx.Value) bool {
	if v == nil || w == nil {
		return v == w
	}
	return v.Name == w.Name || v.IsConstant() && w.IsConstant() && v.Type.Same(w.Type)
}
