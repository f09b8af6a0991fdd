package grad

// Where a gradient ends: detach in the exported model, and what the caller names.
// That a block ran under torch.no_grad, and that a parameter has
// requires_grad=False, is written in no file.

import (
	"path"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// A Stop is a value that reaches the loss and hands no gradient on.
type Stop struct {
	// Value is the value of the file, Source who asked for the stop: "aten.detach"
	// or "--stop".
	Value  string `json:"value"`
	Source string `json:"source"`
}

// fromOption is the source of stops that Options.Stop asks for.
const fromOption = "--stop"

// A stopPattern is VALUE, or VALUE->NODE: what only these nodes read without a
// gradient, where other readers of the same value hand one on.
type stopPattern struct {
	value, reader string
}

func parseStop(text string) stopPattern {
	value, reader, _ := strings.Cut(text, "->")
	return stopPattern{value, reader}
}

// insertStops puts stops behind the float values that match, and says in the
// Result which patterns met none. It is an error if no pattern met any, or if one
// is invalid.
func insertStops(g *onnx.Graph, patterns []string, res *Result) error {
	var missed []string
	values, stops := valuesOf(g), normalize.NewStops(g)
	defer stops.Apply()
	for _, text := range patterns {
		p := parseStop(text)
		for _, glob := range []string{p.value, p.reader} {
			if _, err := path.Match(glob, ""); err != nil {
				return &StopError{text, "not a valid pattern"}
			}
		}
		hits := 0
		for _, v := range values {
			if planner.Match(p.value, v.Name) && mayCarryGradient(v) {
				hits += stop(stops, v, p.reader)
			}
		}
		if hits == 0 {
			missed = append(missed, text)
		}
	}
	if len(missed) > 0 && len(missed) == len(patterns) {
		return &StopError{missed[0], "matches no float value that is read"}
	}
	for _, text := range missed {
		res.warn("--stop %q matches no float value that is read", text)
	}
	return nil
}

// stops reports that the caller stops the value of that name for all that reads it.
func (c *chooser) stops(name string) bool {
	return slices.ContainsFunc(c.o.Stop, func(text string) bool {
		p := parseStop(text)
		return p.reader == "" && planner.Match(p.value, name)
	})
}

func mayCarryGradient(v *onnx.Value) bool {
	return v.Type.Other == nil && (v.Type.DType.IsFloat() || v.Type.DType == onnx.Undefined)
}

// stop puts one stop behind v, or one before each reader that matches, and returns
// how many.
func stop(stops *normalize.Stops, v *onnx.Value, reader string) int {
	if reader == "" {
		if len(v.Uses()) == 0 {
			return 0
		}
		stops.Behind(v, fromOption)
		return 1
	}
	hits := 0
	for _, u := range slices.Clone(v.Uses()) {
		if u.Index != onnx.Captured && planner.Match(reader, u.Node.Name()) && normalize.StoppedBy(u.Node) == "" {
			stops.Before(u.Node, u.Index, fromOption)
			hits++
		}
	}
	return hits
}

// valuesOf lists inputs, initializers and what nodes make.
func valuesOf(g *onnx.Graph) []*onnx.Value {
	var all []*onnx.Value
	all = append(all, g.Initializers...)
	for _, v := range g.Inputs {
		if v.Init == nil {
			all = append(all, v)
		}
	}
	for _, n := range g.Nodes {
		for _, v := range n.Returns() {
			all = append(all, v)
		}
	}
	return all
}

// stops lists the stops that end in the loss.
func (e *engine) stops(reach map[*onnx.Value]bool) []Stop {
	var list []Stop
	for _, n := range e.m.Graph.Nodes {
		source := normalize.StoppedBy(n)
		if source == "" || !reach[n.Out(0)] {
			continue
		}
		if s := (Stop{Value: normalize.StoppedValue(n).Name, Source: source}); !slices.Contains(list, s) { // several readers may stop one value
			list = append(list, s)
		}
	}
	return list
}
