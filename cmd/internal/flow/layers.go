package flow

// A plan drawn over the layers that were found.

import "github.com/onnx-remat/remat/report"

// Layers draws the plan over the layers that were found, in forward order.
func (r *Planned) Layers() []report.PlanLayer {
	p := r.Problem
	if p.LayerCount() == 0 {
		return nil
	}
	layer := r.layerOf()
	out := make([]report.PlanLayer, p.LayerCount())
	boundary := map[int]bool{}
	for _, v := range r.Plan.Boundaries {
		boundary[v] = true
	}
	for i := range out {
		out[i].Layer = p.Values[p.Layers[i+1]].Name
		out[i].Boundary = boundary[p.Layers[i+1]]
	}
	producer := map[int]int{}
	for op := range p.Graph.Nodes {
		for _, v := range p.Graph.Nodes[op].Outputs {
			producer[v] = op
		}
	}
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

// layerOf says which layer a forward operator belongs to, -1 for none: the
// last one whose input it depends on and whose output it does not.
func (r *Planned) layerOf() []int {
	p := r.Problem
	depth := make([]int, len(p.Values)) // layers begun before the value
	begin := map[int]int{}
	for i, v := range p.Layers {
		begin[v] = i + 1
	}
	out := make([]int, len(p.Ops))
	for op, n := range p.Graph.Nodes {
		out[op] = -1
		if !p.Ops[op].Forward {
			continue
		}
		d := 0
		for _, v := range n.Inputs {
			if v >= 0 {
				d = max(d, depth[v])
			}
		}
		for _, v := range n.Outputs {
			if v < 0 {
				continue
			}
			depth[v] = d
			if b, ok := begin[v]; ok {
				depth[v] = b
			}
		}
		if d > 0 && d <= p.LayerCount() {
			out[op] = d - 1
		}
	}
	return out
}
