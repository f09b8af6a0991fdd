package pipeline

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/runtime"
)

// findRoles takes the roles of the graph as it was given, unless they are said:
// normalization fuses the sum that made a state's next value out of a gradient
// into the product before it, and then the structure tells no more.
func (p *preparation) findRoles(*runtime.Engine) error {
	if _, said := p.Model.Metadata(step.RolesKey); said || p.roles != nil {
		return nil
	}
	if err := p.inferTypes(); err != nil {
		return err
	}
	a, err := analysis.Analyze(p.Model, analysis.Options{Dims: p.Options.Dims})
	if err != nil {
		return err
	}
	if a.Roles.Training() {
		p.found = &a.Roles
	}
	return nil
}

// keepRoles makes what was found count, but for values that are gone since:
// outputs that were dropped, initializers that were folded.
func (p *preparation) keepRoles(*runtime.Engine) error {
	if p.found == nil {
		return nil
	}
	p.roles = new(p.found.Within(p.Model.Graph))
	return nil
}

// forgetRoles takes outputs that were dropped out of the roles that are said, by
// the file or by the user. The loss has to stay: forward and backward are told
// apart by it.
func (p *preparation) forgetRoles() error {
	g := p.Model.Graph
	r, said, err := step.RolesOf(p.Model, p.roles)
	if err != nil || !said {
		return err
	}
	gone := func(_, name string) bool { v := g.Value(name); return v == nil || !v.IsOutput() }
	if r.Loss != "" && gone("", r.Loss) {
		return fmt.Errorf("--drop-output: %s is the loss, which must stay an output", r.Loss)
	}
	if in, next := staleState(g, r); in != nil {
		return fmt.Errorf("--drop-output: %s is the next value of %s, from which the next update goes on: drop the outputs that are made of it too, or leave it", next, in.Name)
	}
	return p.setRoles(r.Within(g))
}

// staleState is an input of an optimizer's state whose next value is no output any more, though
// others are still made of it: each step would go on from the first one's. A parameter or a running
// statistic without one is frozen.
func staleState(g *onnx.Graph, r step.Roles) (in *onnx.Value, next string) {
	var forward *step.Slice
	for _, name := range slices.Sorted(maps.Keys(r.New)) {
		in, v := g.Value(name), g.Value(r.New[name])
		if in == nil || v != nil && v.IsOutput() || len(in.Uses()) == 0 || slices.Contains(r.Buffers, name) {
			continue
		}
		if loss := g.Value(r.Loss); forward == nil && loss != nil {
			forward = step.DependenciesOf(g).Backward(step.Any, loss)
		}
		if forward != nil && !slices.ContainsFunc(in.Uses(), func(u onnx.Use) bool { return forward.Has(u.Node) }) {
			return in, r.New[name]
		}
	}
	return nil, ""
}

// setRoles puts roles in the place of those that are said, by the user or by the file.
func (p *preparation) setRoles(r step.Roles) error {
	if p.roles != nil {
		p.roles = &r
		return nil
	}
	return r.Write(p.Model)
}

// FoundRoles are the roles of a graph as far as they can be found, or as given,
// and the graph's analysis, nil where it has none; a plain forward graph has no
// role but perhaps a loss.
func FoundRoles(m *onnx.Model, given *step.Roles) (step.Roles, *analysis.Analysis) {
	var roles step.Roles
	a, err := analysis.Analyze(m, analysis.Options{})
	if err == nil {
		roles = a.Roles
	}
	if given != nil {
		roles = *given
	}
	return roles, a
}
