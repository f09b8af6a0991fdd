package runtime

// Roles: which output is the loss, the gradient or the next value of which
// input. They come from the caller, the file's metadata entry remat.roles, or
// the names that remat gives (P.grad, P.new).

import (
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// Roles names what inputs and outputs of a training graph are to one another.
type Roles = step.Roles

// FindRoles returns the roles of a model: those given, if any, or those of its
// metadata, or else what names tell. A role that names no input or output of the
// graph is an error.
func FindRoles(m *onnx.Model, given *Roles) (Roles, error) {
	r, stated, err := step.RolesOf(m, given)
	if err != nil {
		return r, err
	}
	if !stated {
		r = rolesByName(m.Graph)
	}
	return r, r.Check(m.Graph)
}

// rolesByName takes the names that remat gives.
func rolesByName(g *onnx.Graph) Roles {
	r := Roles{Grad: map[string]string{}, New: map[string]string{}}
	for _, o := range g.Outputs {
		if in := g.Value(strings.TrimSuffix(o.Name, step.GradSuffix)); in != nil && in != o && in.IsInput() {
			r.Grad[in.Name] = o.Name
		}
		if in := g.Value(strings.TrimSuffix(o.Name, step.NewSuffix)); in != nil && in != o && in.IsInput() {
			r.New[in.Name] = o.Name
		}
		if o.Name == "loss" {
			r.Loss = o.Name
		}
	}
	if r.Loss == "" {
		r.Loss = onlyScalar(g)
	}
	return r
}

// onlyScalar is the only scalar float output, or "".
func onlyScalar(g *onnx.Graph) string {
	found := ""
	for _, o := range g.Outputs {
		if t := o.Type; t.DType.IsFloat() && t.Ranked && len(t.Shape) == 0 {
			if found != "" {
				return ""
			}
			found = o.Name
		}
	}
	return found
}

// A category is how an input counts in the memory of a step.
type category int

const (
	feedInput category = iota
	parameterInput
	stateInput
)

// categorize tells parameters, optimizer state and feeds apart. State has a
// next value and no influence on the step's loss, or, in a part of a step that has none, no
// place in remat.parameters, be that empty; parameters are what else has
// one, has a gradient, has a place there, or was fed as
// "param:NAME".
func categorize(r Roles, g *onnx.Graph, located map[string]Location, fed map[string]bool) map[string]category {
	var forward map[*onnx.Value]bool // what elements of the loss come from
	if loss := g.Value(r.Loss); loss != nil {
		forward = step.DependenciesOf(g).Backward(step.Data, loss).Reads()
		forward[loss] = true
	}
	out := map[string]category{}
	for _, v := range g.Inputs {
		_, hasNew := r.New[v.Name]
		_, hasGrad := r.Grad[v.Name]
		_, isLocated := located[v.Name]
		switch {
		case slices.Contains(r.Buffers, v.Name):
			out[v.Name] = parameterInput
		case hasNew && !hasGrad && (forward != nil && !forward[v] || forward == nil && located != nil && !isLocated):
			out[v.Name] = stateInput
		case hasNew || hasGrad || isLocated || fed[v.Name]:
			out[v.Name] = parameterInput
		}
	}
	return out
}

// SortInputs lists the inputs of a model that are parameters and those that are
// optimizer state; all others are feeds.
func SortInputs(m *onnx.Model, r Roles) (parameters, state []string, err error) {
	located, err := ReadLocations(m)
	if err != nil {
		return nil, nil, err
	}
	categories := categorize(r, m.Graph, located, nil)
	for _, v := range m.Graph.Inputs {
		switch categories[v.Name] {
		case parameterInput:
			parameters = append(parameters, v.Name)
		case stateInput:
			state = append(state, v.Name)
		}
	}
	return parameters, state, nil
}
