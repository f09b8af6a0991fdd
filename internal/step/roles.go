package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// RolesKey is the metadata entry that holds Roles as JSON.
const RolesKey = "remat.roles"

// Suffixes of the outputs that remat makes for an input P: P.grad and P.new.
const (
	GradSuffix = ".grad"
	NewSuffix  = ".new"
)

// Roles says what inputs and outputs of a graph are to one another, by name. The
// zero Roles are those of a forward graph.
type Roles struct {
	// Loss is the output that is trained on, "" if none is known.
	Loss string `json:"loss"`
	// Grad maps an input or initializer to the output that is its gradient, New
	// to the output that is its next value.
	Grad map[string]string `json:"grad"`
	New  map[string]string `json:"new"`
	// Buffers are the keys of New that forward moves by itself: running statistics.
	Buffers []string `json:"buffers,omitempty"`
	// Sums maps a gradient to the outputs that are summed up before it, each of which may
	// be written over the one before, and it over the last (sums.go).
	Sums map[string][]string `json:"sums,omitempty"`
}

// GradientOf is the value that bears the name of an input's gradient, nil for none. It
// need be no output: an update takes it off them.
func GradientOf(g *onnx.Graph, in *onnx.Value) *onnx.Value { return g.Value(in.Name + GradSuffix) }

// ParseRoles reads the JSON form. A field that Roles does not have is an error:
// what it says would be lost.
func ParseRoles(data []byte) (Roles, error) {
	var r Roles
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return Roles{}, fmt.Errorf("roles: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Roles{}, errors.New("roles: text after the JSON object")
	}
	return r, nil
}

// RolesOf returns the roles that are given, or else those of the model's metadata
// entry; stated is false where there are neither. The names are not checked.
func RolesOf(m *onnx.Model, given *Roles) (r Roles, stated bool, err error) {
	if given != nil {
		return *given, true, nil
	}
	text, stated := m.Metadata(RolesKey)
	if !stated {
		return Roles{}, false, nil
	}
	if r, err = ParseRoles([]byte(text)); err != nil {
		return Roles{}, true, fmt.Errorf("metadata %s: %w", RolesKey, err)
	}
	return r, true, nil
}

// Write makes the roles the model's metadata entry.
func (r Roles) Write(m *onnx.Model) error {
	return m.SetJSON(RolesKey, r)
}

// Check refuses a role of something that the graph does not have.
func (r Roles) Check(g *onnx.Graph) error {
	if r.Loss != "" && !isOutput(g, r.Loss) {
		return fmt.Errorf("roles: the graph has no output %q", r.Loss)
	}
	for _, pairs := range []map[string]string{r.Grad, r.New} {
		for _, in := range slices.Sorted(maps.Keys(pairs)) {
			if !isGiven(g, in) {
				return fmt.Errorf("roles: the graph has no input or initializer %q", in)
			}
			if !isOutput(g, pairs[in]) {
				return fmt.Errorf("roles: the graph has no output %q", pairs[in])
			}
		}
	}
	for i, b := range r.Buffers {
		switch {
		case r.New[b] == "":
			return fmt.Errorf("roles: the buffer %q has no next value", b)
		case slices.Contains(r.Buffers[:i], b):
			return fmt.Errorf("roles: the buffer %q is listed twice", b)
		}
	}
	for _, sum := range slices.Sorted(maps.Keys(r.Sums)) {
		for _, part := range append([]string{sum}, r.Sums[sum]...) {
			if !isOutput(g, part) {
				return fmt.Errorf("roles: the graph has no output %q", part)
			}
		}
	}
	return nil
}

// Within returns the roles of what the graph has, in maps of their own.
func (r Roles) Within(g *onnx.Graph) Roles {
	out := Roles{Grad: maps.Clone(r.Grad), New: maps.Clone(r.New), Sums: maps.Clone(r.Sums)}
	if isOutput(g, r.Loss) {
		out.Loss = r.Loss
	}
	gone := func(in, name string) bool { return !isGiven(g, in) || !isOutput(g, name) }
	maps.DeleteFunc(out.Grad, gone)
	maps.DeleteFunc(out.New, gone)
	for _, b := range r.Buffers {
		if out.New[b] != "" {
			out.Buffers = append(out.Buffers, b)
		}
	}
	maps.DeleteFunc(out.Sums, func(sum string, parts []string) bool {
		return slices.ContainsFunc(append([]string{sum}, parts...), func(name string) bool { return !isOutput(g, name) })
	})
	return out
}

// Training reports roles that name a gradient or a next value.
func (r Roles) Training() bool { return len(r.Grad)+len(r.New) > 0 }

// Trains reports an input that an optimizer updates, or that has a gradient.
func (r Roles) Trains(in string) bool {
	return r.Grad[in] != "" || r.New[in] != "" && !slices.Contains(r.Buffers, in)
}

// Updates reports roles of a graph that an optimizer updates: some next value is not
// forward's own.
func (r Roles) Updates() bool { return len(r.New) > len(r.Buffers) }

// Leave reports roles of outputs that can leave a step in more than one way.
func (r Roles) Leave() bool { return len(r.New)+len(r.Sums) > 0 }

func isOutput(g *onnx.Graph, name string) bool {
	v := g.Value(name)
	return v != nil && v.IsOutput()
}

func isGiven(g *onnx.Graph, name string) bool {
	v := g.Value(name)
	return v != nil && (v.IsInput() || v.Init != nil)
}
