package pipeline

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/runtime"
)

// findRoles takes the roles of the graph as it was given, unless they are said:
// normalization fuses the sum that made a state's next value out of a gradient
// into the product before it, and then the structure tells no more.
func (p *preparation) findRoles(*runtime.Engine) error {
	if _, said := p.Model.Metadata(RolesKey); said || p.roles != nil {
		return nil
	}
	if _, err := infer.Model(p.Model, infer.Options{Dims: p.Options.Dims}); err != nil {
		return err
	}
	a, err := analysis.Analyze(p.Model, analysis.Options{Dims: p.Options.Dims})
	if err != nil {
		return err
	}
	if len(a.Roles.Grad)+len(a.Roles.New) > 0 {
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
	g := p.Model.Graph
	output := func(name string) bool { v := g.Value(name); return v != nil && v.IsOutput() }
	input := func(v *onnx.Value) bool { return v != nil && (v.IsInput() || v.Init != nil) }
	r := analysis.Roles{Grad: map[string]string{}, New: map[string]string{}}
	if output(p.found.Loss) {
		r.Loss = p.found.Loss
	}
	for _, pairs := range []struct{ from, to map[string]string }{{p.found.Grad, r.Grad}, {p.found.New, r.New}} {
		for in, out := range pairs.from {
			if input(g.Value(in)) && output(out) {
				pairs.to[in] = out
			}
		}
	}
	p.roles = &r
	return nil
}

// forgetRoles takes outputs that were dropped out of the roles that are said, by
// the file or by the user. The loss has to stay: forward and backward are told
// apart by it.
func (p *preparation) forgetRoles() error {
	g := p.Model.Graph
	var r analysis.Roles
	text, said := p.Model.Metadata(RolesKey)
	switch {
	case p.roles != nil:
		r = *p.roles
	case !said:
		return nil
	default:
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return fmt.Errorf("metadata %s: %w", RolesKey, err)
		}
	}
	gone := func(_, name string) bool { v := g.Value(name); return v == nil || !v.IsOutput() }
	if r.Loss != "" && gone("", r.Loss) {
		return fmt.Errorf("--drop-output: %s is the loss, which has to stay an output", r.Loss)
	}
	r.Grad, r.New = maps.Clone(r.Grad), maps.Clone(r.New)
	maps.DeleteFunc(r.Grad, gone)
	maps.DeleteFunc(r.New, gone)
	if p.roles != nil {
		p.roles = &r
		return nil
	}
	return SetJSON(p.Model, RolesKey, r)
}

// FoundRoles are the roles of a graph as far as they can be found, or as given,
// and the graph's analysis, nil where it has none; a plain forward graph has no
// role but perhaps a loss.
func FoundRoles(m *onnx.Model, given *runtime.Roles) (analysis.Roles, *analysis.Analysis) {
	var roles analysis.Roles
	a, err := analysis.Analyze(m, analysis.Options{})
	if err == nil {
		roles = a.Roles
	}
	if given != nil {
		roles = analysis.Roles{Loss: given.Loss, Grad: given.Grad, New: given.New}
	}
	return roles, a
}
