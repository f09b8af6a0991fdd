package analysis

// Names of layers. Layers are found by structure (layers.go); what a person calls
// them, the exporter says: each node's module (onnx.Node.Module). A layer is named
// after the module that it is most alike, by the share of their nodes that they have
// in common (Jaccard), among those that hold at least half of the layer:
//
//	layer 2:  27 nodes of model.layers.1, 1 of model.layers.2
//	          model 28/120   model.layers.1 27/28   model.layers.1.mlp 9/28
//
// Where the exporter says nothing, a layer has the name of the value that it ends
// in.

import (
	"fmt"
	"strings"
)

// nameLayers names every layer that was found.
func (a *Analysis) nameLayers() {
	p := a.Problem
	names := make([]string, p.LayerCount())
	held := make([]map[string]int, len(names)) // nodes of each layer by module
	size := make([]int, len(names))
	total := map[string]int{}
	for op, layer := range p.LayerOf() {
		if !p.Ops[op].Forward {
			continue
		}
		path := a.Nodes[op].Module()
		if path == "" {
			continue
		}
		for _, module := range Enclosing(path) {
			total[module]++
			if layer >= 0 {
				if held[layer] == nil {
					held[layer] = map[string]int{}
				}
				held[layer][module]++
			}
		}
		if layer >= 0 {
			size[layer]++
		}
	}
	layers := map[string]int{} // of a name
	for i := range names {
		names[i] = nearest(held[i], total, size[i])
		layers[names[i]]++
	}
	seen := map[string]int{}
	for i, name := range names {
		switch {
		case name == "":
			names[i] = p.Values[p.LayerEnd(i)].Name
		case layers[name] > 1: // steps of a recurrent layer, unrolled
			seen[name]++
			names[i] = fmt.Sprintf("%s (%d)", name, seen[name])
		}
	}
	p.LayerNames = names
}

// Enclosing lists a module and those around it, outermost first.
func Enclosing(path string) []string {
	var list []string
	for i := range path {
		if path[i] == '.' {
			list = append(list, path[:i])
		}
	}
	return append(list, path)
}

// nearest is the module that a layer of size nodes is most alike, the inner one of
// equals; "" for none.
func nearest(held, total map[string]int, size int) string {
	best, share := "", 0.0
	for module, n := range held {
		if 2*n < size {
			continue
		}
		by := float64(n) / float64(size+total[module]-n)
		inner := len(module) > len(best) && strings.HasPrefix(module, best)
		if by > share || by == share && (inner || !strings.HasPrefix(best, module) && module < best) {
			best, share = module, by
		}
	}
	return best
}
