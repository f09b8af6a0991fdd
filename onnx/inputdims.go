package onnx

// Dimensions of inputs that have neither a size nor a name in the file, as skl2onnx and hand-written
// graphs have them: named, INPUT.AXIS, so that they can be given a size as others are.

import (
	"fmt"
	"regexp"
	"slices"
)

// notInNames is what a name of a dimension does not hold: signs, which make it an expression, and
// what a list of sizes is divided by.
var notInNames = regexp.MustCompile(`[^A-Za-z0-9_.]`)

// InputSymbols are the names in the dimensions of inputs.
func (g *Graph) InputSymbols() map[string]bool {
	names := map[string]bool{}
	for _, v := range g.Inputs {
		for _, d := range v.Type.Shape {
			for _, name := range d.Symbols() {
				names[name] = true
			}
		}
	}
	return names
}

// nameInputDims names the dimensions of inputs that have neither a size nor a name, and
// reports whether there are any.
func (g *Graph) nameInputDims() (named bool) {
	taken := g.InputSymbols()
	for _, v := range g.Inputs {
		for axis, d := range v.Type.Shape {
			if d.Known() {
				continue
			}
			named = true
			base := fmt.Sprintf("%s.%d", notInNames.ReplaceAllString(v.Name, "_"), axis)
			name := base
			for i := 1; taken[name]; i++ {
				name = fmt.Sprintf("%s_%d", base, i)
			}
			taken[name] = true
			v.Type.Shape = slices.Clone(v.Type.Shape)
			v.Type.Shape[axis] = Symbol(name)
		}
	}
	return named
}
