package grad

// Which linear layers get a low-rank pair (package adapter). A pattern selects among
// the weights of linear layers that a gradient could reach, as one of --params selects
// among parameters, and leaves out what is read otherwise too: a tied embedding takes
// its full name. Then the products of that weight get the pair, and its other readers
// see the weight as it is.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/adapter"
)

// A layer is a linear layer by the name that people know its weight by.
type layer struct {
	*adapter.Linear
	name string
}

// adapt adds the pairs that the options ask for. Reach holds the values from which a
// gradient path leads to the loss.
func (e *engine) adapt(c *chooser, reach map[*onnx.Value]bool, types build.Typer, res *Result) error {
	if len(c.o.Adapters) == 0 {
		return nil
	}
	layers := c.layers(e.m.Graph, reach)
	specs := map[string]adapter.Spec{} // by layer: of several the last counts
	for _, s := range c.o.Adapters {
		for _, glob := range s.Globs {
			chosen, err := c.selected(e.m.Graph, glob, layers)
			if err != nil {
				return err
			}
			for _, l := range chosen {
				specs[l.name] = s
			}
		}
	}
	for _, l := range layers {
		s, ok := specs[l.name]
		if !ok {
			continue
		}
		if err := e.addPair(c, l, s, types, res); err != nil {
			return err
		}
	}
	return nil
}

// smallRank is taken of any layer, be it the narrow one of a classifier.
const smallRank = 64

// addPair adds the pair of a layer, and makes it what is trained.
func (e *engine) addPair(c *chooser, l layer, s adapter.Spec, types build.Typer, res *Result) error {
	if most := max(l.In, l.Out, smallRank); s.Rank > most {
		return &adapter.Error{Spec: strings.Join(s.Globs, ","), Reason: fmt.Sprintf("r=%d is far above what %s of %d x %d has: want at most %d", s.Rank, l.name, l.In, l.Out, most)}
	}
	for _, suffix := range []string{adapter.SuffixA, adapter.SuffixB} {
		if e.m.Graph.Value(l.name+suffix) != nil {
			return &ClashError{l.name + suffix}
		}
	}
	p, err := adapter.Insert(e.m.Graph, types, l.Linear, l.name, s.Rank, s.Alpha)
	if err != nil {
		return err
	}
	for _, v := range []*onnx.Value{p.A, p.B} {
		c.candidates[v], c.adapters[v.Name] = true, true
	}
	if l.Tied() {
		res.Warnings = append(res.Warnings, fmt.Sprintf("%s is read by more than products: its pair is of the products alone, and a merged model holds the weight twice", l.name))
	}
	res.Adapters[l.name] = step.Adapter{Rank: p.Rank, Alpha: p.Alpha}
	return nil
}

// layers lists the linear layers through which a gradient reaches the loss, less what
// --frozen names, and constants.
func (c *chooser) layers(g *onnx.Graph, reach map[*onnx.Value]bool) []layer {
	var list []layer
	for _, l := range adapter.Linears(g) {
		w := l.Weight
		l.Products = slices.DeleteFunc(l.Products, func(n *onnx.Node) bool {
			return !reach[n.Out(0)] || !n.In(0).Type.DType.IsFloat() || !n.In(0).Type.Ranked || !n.Out(0).Type.Ranked
		})
		if len(l.Products) == 0 || c.o.Signature.meanAny(c.o.Frozen, w.Name) || c.candidates[w] && !c.judge(w).Trained {
			continue
		}
		list = append(list, layer{l, c.o.Signature.LayerName(w.Name, l)})
	}
	return list
}

// selected are the layers that a name or pattern is of.
func (c *chooser) selected(g *onnx.Graph, glob string, layers []layer) ([]layer, error) {
	means := func(l layer) bool { return c.o.Signature.means(glob, l.Weight.Name) || matchGlob(glob, l.name) }
	var chosen []layer
	var tied []string
	for _, l := range layers {
		switch {
		case !means(l):
		case l.Tied() && isGlob(glob):
			tied = append(tied, l.name)
		default:
			chosen = append(chosen, l)
		}
	}
	if len(chosen) > 0 {
		return chosen, nil
	}
	return nil, &adapter.Error{Spec: glob, Reason: c.notSelected(g, glob, tied) + "; " + linearNames(layers)}
}

// notSelected says why a pattern selects no layer.
func (c *chooser) notSelected(g *onnx.Graph, glob string, tied []string) string {
	if len(tied) > 0 {
		return "matches only what is read by more than products (" + some(tied) + "): give its full name to adapt those"
	}
	var names []string
	why := ""
	for _, v := range g.Initializers {
		if c.o.Signature.means(glob, v.Name) {
			names = append(names, v.Name)
			_, why = adapter.Find(v)
		}
	}
	switch {
	case len(names) == 0:
		return nothingMatches
	case len(names) > 1:
		return "matches no linear layer's weight, only " + some(names)
	case why == "":
		return "the loss does not depend on it through a product, or it is frozen or a constant"
	}
	return "is no linear layer's weight: " + why
}

func linearNames(layers []layer) string {
	if len(layers) == 0 {
		return "the model has no linear layer that could be adapted"
	}
	var names []string
	for _, l := range layers {
		names = append(names, l.name)
	}
	return "linear layers are " + some(names)
}

// LayerName is the name that people know a linear layer's weight by: its own or, where
// an exporter computed it from a parameter, that one's; of a weight that no module names
// (onnx::MatMul_12) what its module would call it.
func (s *Signature) LayerName(name string, l *adapter.Linear) string {
	if s.kinds[name] != "" || stateName.MatchString(name) && strings.Contains(name, ".") {
		return name
	}
	if from := s.origins(name); len(from) == 1 {
		return from[0]
	}
	if module := l.Module(); module != "" {
		return module + ".weight"
	}
	return name
}
