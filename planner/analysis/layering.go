package analysis

// Layers of a step over micro-batches. Each has those of the graph that was divided, and
// none can be found by structure: no value cuts forward any more. So they are found before,
// and noted in the graph by the names of what stands for their cuts then, one value of each
// micro-batch.
//
//	whole          x ─ layer 1 ─ a ─ layer 2 ─ b ─ …
//	two slices     x[0] ─ layer 1 ─ a0 ─ layer 2 ─ b0 ─ …      cuts {a0, a1}, {b0, b1}
//	               x[1] ─ layer 1 ─ a1 ─ layer 2 ─ b1 ─ …
//
// Passes behind the division may take a value away; the layers on both sides of a cut that is
// gone are one.

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
)

// A Layering says where layers end, by names of values; see planner.Problem. The metadata entry
// step.LayersKey of a step over micro-batches holds it.
type Layering struct {
	Layers [][]string `json:"layers"`
	Names  []string   `json:"names"`
	Cuts   [][]string `json:"cuts"`
	Beside []string   `json:"beside"`
}

// Write makes it the model's metadata entry.
func (l *Layering) Write(m *onnx.Model) error { return m.SetJSON(step.LayersKey, l) }

// layeringOf reads a model's metadata entry; nil: it has none.
func layeringOf(m *onnx.Model) (*Layering, error) {
	text, ok := m.Metadata(step.LayersKey)
	if !ok {
		return nil, nil
	}
	l := new(Layering)
	if err := json.Unmarshal([]byte(text), l); err != nil {
		return nil, fmt.Errorf("metadata %s: %w", step.LayersKey, err)
	}
	if n := max(len(l.Layers)-1, 0); len(l.Names) != n {
		return nil, fmt.Errorf("metadata %s: %d names for %d layers", step.LayersKey, len(l.Names), n)
	}
	return l, nil
}

// FindLayers finds the layers, which Options.Sides leaves out, unless the graph notes them.
func (a *Analysis) FindLayers() {
	if a.batches != nil {
		a.adopt(a.batches)
		return
	}
	a.findLayers()
	a.nameLayers()
}

// LayerValues are the values of the cuts, and those beside layers.
func (a *Analysis) LayerValues() []*onnx.Value {
	var list []*onnx.Value
	for _, cut := range append(slices.Concat(a.Problem.Cuts, a.Problem.Layers), a.Problem.Beside) {
		for _, v := range cut {
			list = append(list, a.Values[v])
		}
	}
	return list
}

// Layering notes the layers for the analysis of another graph, in which versions stand for a
// value of this one; none: it is still there itself.
func (a *Analysis) Layering(versions func(*onnx.Value) []*onnx.Value) *Layering {
	p := a.Problem
	named := func(cut planner.Cut) (names []string) {
		for _, v := range cut {
			list := versions(a.Values[v])
			if len(list) == 0 {
				list = a.Values[v : v+1]
			}
			for _, w := range list {
				names = append(names, w.Name)
			}
		}
		return names
	}
	l := &Layering{Names: p.LayerNames, Beside: named(p.Beside)}
	for _, cut := range p.Cuts {
		l.Cuts = append(l.Cuts, named(cut))
	}
	for _, cut := range p.Layers {
		l.Layers = append(l.Layers, named(cut))
	}
	return l
}

// adopt takes over the layers that were noted.
func (a *Analysis) adopt(l *Layering) {
	p := a.Problem
	computed := map[string]int{}
	for v, op := range p.Graph.Producers() {
		if op != ortmodel.None {
			computed[a.Values[v].Name] = v
		}
	}
	find := func(names []string) (cut planner.Cut, all bool) {
		for _, name := range names {
			if v, ok := computed[name]; ok {
				cut = append(cut, v)
			}
		}
		return cut, len(cut) == len(names)
	}
	for _, names := range l.Cuts {
		if cut, all := find(names); all && len(cut) > 0 {
			p.Cuts = append(p.Cuts, cut)
		}
	}
	p.Beside, _ = find(l.Beside)
	for i, names := range l.Layers {
		cut, all := find(names)
		if !all || len(cut) == 0 && i > 0 {
			continue
		}
		if len(p.Layers) > 0 {
			p.LayerNames = append(p.LayerNames, l.Names[i-1])
		}
		p.Layers = append(p.Layers, cut)
	}
	if p.LayerCount() == 0 {
		p.Layers = nil
	}
}
