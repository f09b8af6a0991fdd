package analysis

// Layers of a step over micro-batches. Each has those of the graph that was divided, and
// none can be found by structure: no value cuts forward any more. So they are found before,
// and noted by the names of what stands for their cuts then, one value of each
// micro-batch.
//
//	whole          x ─ layer 1 ─ a ─ layer 2 ─ b ─ …
//	two slices     x[0] ─ layer 1 ─ a0 ─ layer 2 ─ b0 ─ …      cuts {a0, a1}, {b0, b1}
//	               x[1] ─ layer 1 ─ a1 ─ layer 2 ─ b1 ─ …
//
// Passes behind the division may take a value away; the layers on both sides of a cut that is
// gone are one.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
)

// A Layering says where layers end, by names of values.
type Layering struct {
	cuts, layers [][]string
	names        []string
	beside       []string
}

// FindLayers finds the layers that Options.Sides left out.
func (a *Analysis) FindLayers() {
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
	l := &Layering{names: p.LayerNames, beside: named(p.Beside)}
	for _, cut := range p.Cuts {
		l.cuts = append(l.cuts, named(cut))
	}
	for _, cut := range p.Layers {
		l.layers = append(l.layers, named(cut))
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
	for _, names := range l.cuts {
		if cut, all := find(names); all {
			p.Cuts = append(p.Cuts, cut)
		}
	}
	p.Beside, _ = find(l.beside)
	for i, names := range l.layers {
		cut, all := find(names)
		if !all {
			continue
		}
		if len(p.Layers) > 0 {
			p.LayerNames = append(p.LayerNames, l.names[i-1])
		}
		p.Layers = append(p.Layers, cut)
	}
	if p.LayerCount() == 0 {
		p.Layers = nil
	}
}
