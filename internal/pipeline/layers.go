package pipeline

// A plan drawn over the layers that were found.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner/analysis"
)

// Layers draws the plan over the layers that were found, in forward order.
func (r *File) Layers() []report.PlanLayer {
	p := r.Problem()
	if p.LayerCount() == 0 {
		return nil
	}
	layer := p.LayerOf()
	out := make([]report.PlanLayer, p.LayerCount())
	for i := range out {
		end := p.LayerEnd(i)
		out[i].Layer, out[i].Value = p.LayerNames[i], p.Values[end].Name
		out[i].Boundary = slices.Contains(r.Plan.Boundaries, end)
	}
	producer := p.Graph.Producers()
	for _, v := range r.Plan.Kept(p) {
		if l := layer[producer[v]]; l >= 0 {
			out[l].KeptValues++
			out[l].KeptBytes += p.Graph.Values[v].Bytes
		}
	}
	for op, n := range r.Plan.Recomputed(p) {
		if l := layer[op]; n > 0 && l >= 0 {
			out[l].RecomputedNodes += n
			for _, v := range p.Graph.Nodes[op].Outputs {
				if v >= 0 {
					out[l].RecomputedBytes += p.Graph.Values[v].Bytes
				}
			}
		}
	}
	return out
}

// LayerNames says in which layer a node of a training step works, by the layer's
// name; "" for none. It also knows the nodes that ONNX
// Runtime makes of the graph, as long as what they return keeps its name.
//
// A node of the forward has its layer by Problem.LayerOf. One that is computed again, is a
// gradient or updates a parameter says of what (onnx.Origin). Any other node, as those
// of a foreign graph's backward, is of the last layer whose forward values it
// reads; if it reads none, of the first one that what it reads is from, as gradients
// pass from the last layer to the first.
func LayerNames(a *analysis.Analysis) func(*onnx.Node) string {
	p := a.Problem
	if p.LayerCount() == 0 {
		return func(*onnx.Node) string { return "" }
	}
	forward := p.LayerOf()
	byName := map[string]int{} // of forward nodes, and of what only one layer reads
	for op, layer := range forward {
		if !p.Ops[op].Forward {
			continue
		}
		for _, v := range p.Graph.Nodes[op].Inputs {
			if v < 0 {
				continue
			}
			name := p.Values[v].Name
			if other, read := byName[name]; read && other != layer {
				byName[name] = -1
			} else {
				byName[name] = layer
			}
		}
	}
	for op, layer := range forward {
		if p.Ops[op].Forward {
			byName[p.Ops[op].Name] = layer
		}
	}
	from := origins{byName, make(map[string]*onnx.Node, len(a.Nodes))}
	for _, n := range a.Nodes {
		from.nodes[n.Label()] = n
	}
	made := make([]int, len(p.Values)) // forward layer + 1, backward -(layer + 1)
	byValue := map[string]int{}
	for op, n := range p.Graph.Nodes {
		layer, found := forward[op], p.Ops[op].Forward
		if !found {
			if layer, found = from.layer(a.Nodes[op]); !found {
				layer = readLayer(n.Inputs, made)
			}
		}
		for _, v := range n.Outputs {
			if v < 0 {
				continue
			}
			if made[v] = layer + 1; !p.Ops[op].Forward {
				made[v] = -(layer + 1)
			}
		}
		for _, v := range a.Nodes[op].Outputs {
			if v != nil && layer >= 0 {
				byValue[v.Name] = layer
			}
		}
	}
	return func(n *onnx.Node) string {
		for _, v := range n.Returns() {
			if layer, ok := byValue[v.Name]; ok {
				return p.LayerNames[layer]
			}
		}
		return ""
	}
}

// ModuleNames says where a node of a training step is from: its module, where an
// exporter or a pass noted one, else its layer by LayerNames. Nodes are known by what
// they return, as ONNX Runtime keeps no notes.
func ModuleNames(a *analysis.Analysis) func(*onnx.Node) string {
	layer, modules := LayerNames(a), map[string]string{}
	for _, n := range a.Nodes {
		module := n.Module()
		for _, v := range n.Returns() {
			if module != "" {
				modules[v.Name] = module
			}
		}
	}
	return func(n *onnx.Node) string {
		for _, v := range n.Returns() {
			if modules[v.Name] != "" {
				return modules[v.Name]
			}
		}
		return layer(n)
	}
}

// origins leads from a node that a pass made to what it stems from.
type origins struct {
	layers map[string]int // of forward nodes, and of values that one layer reads
	nodes  map[string]*onnx.Node
}

// layer is the layer of the forward node, or of the parameter, that a clone, a
// gradient's or an update's node stems from.
func (o origins) layer(n *onnx.Node) (int, bool) {
	for seen := 0; n != nil && seen < len(o.nodes); seen++ {
		of := n.Origin().Of
		if layer, ok := o.layers[of]; ok {
			return layer, true
		}
		n = o.nodes[of]
	}
	return -1, false
}

// readLayer is the layer of a backward node by what it reads; -1 for none.
func readLayer(inputs []int, made []int) int {
	last, first := 0, 0
	for _, v := range inputs {
		switch {
		case v < 0 || made[v] == 0:
		case made[v] > 0:
			last = max(last, made[v])
		case first == 0 || -made[v] < first:
			first = -made[v]
		}
	}
	if last > 0 {
		return last - 1
	}
	return first - 1
}
