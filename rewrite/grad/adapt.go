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
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/adapter"
)

// A Layer is a linear layer by the name that people know its weight by.
type Layer struct {
	*adapter.Linear
	Name string
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
			chosen, tied := c.selected(glob, layers)
			if len(chosen) == 0 {
				return &adapter.Error{Spec: glob, Reason: c.notSelected(e.m.Graph, glob, tied) + "; " + linearNames(layers)}
			}
			if len(tied) > 0 {
				res.warn("--lora %q leaves out what is read by more than products (%s): give its full name to adapt that too", glob, some(tied))
			}
			for _, l := range chosen {
				specs[l.Name] = s
			}
		}
	}
	for _, l := range layers {
		s, ok := specs[l.Name]
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
func (e *engine) addPair(c *chooser, l Layer, s adapter.Spec, types build.Typer, res *Result) error {
	if most := max(l.In, l.Out, smallRank); s.Rank > most {
		return &adapter.Error{Spec: strings.Join(s.Globs, ","), Reason: fmt.Sprintf("r=%d is far above what %s of %d x %d has: want at most %d", s.Rank, l.Name, l.In, l.Out, most)}
	}
	for _, suffix := range []string{adapter.SuffixA, adapter.SuffixB} {
		if e.m.Graph.Value(l.Name+suffix) != nil {
			return &ClashError{l.Name + suffix}
		}
	}
	p, err := adapter.Insert(e.m.Graph, types, l.Linear, l.Name, s.Rank, s.Alpha)
	if err != nil {
		return err
	}
	for _, v := range []*onnx.Value{p.A, p.B} {
		c.candidates[v], c.adapters[v.Name] = true, true
	}
	if l.Tied() {
		res.warn("%s is read by more than products: its pair is of the products alone, and a merged model holds the weight twice", l.Name)
	}
	res.Adapters[l.Name] = step.Adapter{Rank: p.Rank, Alpha: p.Alpha}
	return nil
}

// layers lists the linear layers through which a gradient reaches the loss, less what
// --frozen names, and constants.
func (c *chooser) layers(g *onnx.Graph, reach map[*onnx.Value]bool) []Layer {
	var list []Layer
	for _, l := range c.o.Signature.Layers(g, nil) {
		w := l.Weight
		l.Products = slices.DeleteFunc(l.Products, func(n *onnx.Node) bool {
			return !reach[n.Out(0)] || !n.In(0).Type.DType.IsFloat() || !n.In(0).Type.Ranked || !n.Out(0).Type.Ranked
		})
		if len(l.Products) == 0 || c.o.Signature.meanAny(c.o.Frozen, w.Name) || c.candidates[w] && !c.judge(w).Trained {
			continue
		}
		list = append(list, l)
	}
	return list
}

// selected are the layers that a name or pattern is of, and the names of those that a
// pattern leaves out because they are tied.
func (c *chooser) selected(glob string, layers []Layer) (chosen []Layer, tied []string) {
	for _, l := range layers {
		switch {
		case !c.o.Signature.means(glob, l.Weight.Name) && !planner.Match(glob, l.Name):
		case l.Tied() && isGlob(glob):
			tied = append(tied, l.Name)
		default:
			chosen = append(chosen, l)
		}
	}
	return chosen, tied
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

func linearNames(layers []Layer) string {
	if len(layers) == 0 {
		return "the model has no linear layer that could be adapted"
	}
	var names []string
	for _, l := range layers {
		names = append(names, l.Name)
	}
	return "linear layers are " + some(names)
}

// Layers lists the linear layers of a graph with their names; names are others of
// initializers, by those in the graph. Where two would bear one name, each keeps its own.
func (s *Signature) Layers(g *onnx.Graph, names map[string]string) []Layer {
	own := func(l *adapter.Linear) string {
		if to := names[l.Weight.Name]; to != "" {
			return to
		}
		return l.Weight.Name
	}
	var list []Layer
	count := map[string]int{}
	for _, l := range adapter.Linears(g) {
		name := s.layerName(own(l), l)
		list = append(list, Layer{l, name})
		count[name]++
	}
	for i, l := range list {
		if count[l.Name] > 1 {
			list[i].Name = own(l.Linear)
		}
	}
	return list
}

// layerName is the name that people know a linear layer's weight by: its own or, where
// an exporter computed it from a parameter, that one's; of a weight that no module names
// (onnx::MatMul_12) what its module would call it.
func (s *Signature) layerName(name string, l *adapter.Linear) string {
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
