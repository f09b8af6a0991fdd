package runtime

// Roles: which output is the loss, the gradient or the next value of which
// input. They come from the caller, the file's metadata entry remat.roles, or
// the names that remat gives (P.grad, P.new).

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// RolesKey is the metadata entry that holds Roles as JSON.
const RolesKey = "remat.roles"

// Roles names what inputs and outputs of a training graph are to one another.
type Roles struct {
	Loss string            `json:"loss"`
	Grad map[string]string `json:"grad"` // input to output
	New  map[string]string `json:"new"`  // input to output
}

// Suffixes of the names that remat gives.
const (
	gradSuffix = ".grad"
	newSuffix  = ".new"
)

// FindRoles reads the roles of a model from its metadata, or else from names.
// A role that names no input or output of the graph is an error.
func FindRoles(m *onnx.Model) (Roles, error) {
	r := Roles{Grad: map[string]string{}, New: map[string]string{}}
	if text, ok := m.Metadata(RolesKey); ok {
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return r, fmt.Errorf("metadata %s: %w", RolesKey, err)
		}
	} else {
		r.byName(m.Graph)
	}
	return r, r.check(m.Graph)
}

func (r *Roles) byName(g *onnx.Graph) {
	for _, o := range g.Outputs {
		if in := g.Value(strings.TrimSuffix(o.Name, gradSuffix)); in != nil && in != o && in.IsInput() {
			r.Grad[in.Name] = o.Name
		}
		if in := g.Value(strings.TrimSuffix(o.Name, newSuffix)); in != nil && in != o && in.IsInput() {
			r.New[in.Name] = o.Name
		}
		if o.Name == "loss" {
			r.Loss = o.Name
		}
	}
	if r.Loss == "" {
		r.Loss = onlyScalar(g)
	}
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

func (r *Roles) check(g *onnx.Graph) error {
	output := map[string]bool{}
	for _, o := range g.Outputs {
		output[o.Name] = true
	}
	if r.Loss != "" && !output[r.Loss] {
		return fmt.Errorf("roles: loss %q is not a graph output", r.Loss)
	}
	for _, pairs := range []map[string]string{r.Grad, r.New} {
		for _, in := range slices.Sorted(maps.Keys(pairs)) {
			out := pairs[in]
			if v := g.Value(in); v == nil || !v.IsInput() && v.Init == nil {
				return fmt.Errorf("roles: %q is not a graph input or initializer", in)
			}
			if !output[out] {
				return fmt.Errorf("roles: %q is not a graph output", out)
			}
		}
	}
	return nil
}

// A category is how an input counts in the memory of a step.
type category int

const (
	feedInput category = iota
	parameterInput
	stateInput
)

// categorize tells parameters, optimizer state and feeds apart. State has a
// next value and no influence on the step's loss; parameters are what else has
// one, has a gradient, has a place in remat.parameters, or was fed as
// "param:NAME".
func (r *Roles) categorize(g *onnx.Graph, located map[string]Location, fed map[string]bool) map[string]category {
	forward := inputsOf(g.Value(r.Loss))
	out := map[string]category{}
	for _, v := range g.Inputs {
		_, hasNew := r.New[v.Name]
		_, hasGrad := r.Grad[v.Name]
		_, isLocated := located[v.Name]
		switch {
		case hasNew && !hasGrad && forward != nil && !forward[v]:
			out[v.Name] = stateInput
		case hasNew || hasGrad || isLocated || fed[v.Name]:
			out[v.Name] = parameterInput
		}
	}
	return out
}

// Sorted lists the inputs of a model that are parameters and those that are
// optimizer state; all others are feeds.
func (r *Roles) Sorted(m *onnx.Model) (parameters, state []string, err error) {
	located, err := ReadLocations(m)
	if err != nil {
		return nil, nil, err
	}
	categories := r.categorize(m.Graph, located, nil)
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

// inputsOf is the set of graph inputs whose elements a value depends on, nil for
// no value. What it only waits for does not count: slices of a loss may wait for
// an update.
func inputsOf(v *onnx.Value) map[*onnx.Value]bool {
	if v == nil {
		return nil
	}
	inputs := map[*onnx.Value]bool{}
	seen := map[*onnx.Node]bool{}
	for todo := []*onnx.Value{v}; len(todo) > 0; {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if v == nil {
			continue
		}
		if v.IsInput() {
			inputs[v] = true
		}
		if n := v.Producer; n != nil && !seen[n] {
			seen[n] = true
			for i, in := range n.Inputs {
				if traits.Carries(n, i) {
					todo = append(todo, in)
				}
			}
			todo = append(todo, n.Captures...)
		}
	}
	return inputs
}
