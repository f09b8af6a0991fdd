package tile

// Updates over slices of rows whose slices need not wait for each other.
//
// Where a next value is joined of its slices, all of them wait for the last one: no
// operator but a loop writes part of an output, and none hands a value of the parameter's
// size on with less at its inputs. So m, v and the parameter each take their slices in
// turn, and the gradient's are computed for each (rows.go). If each slice is an output of its
// own, which whoever runs the graph binds onto its rows of the input, nothing waits:
//
//	gradient[rows] ─▶ m.new[rows], v.new[rows] ─▶ P.new[rows]      bound onto their rows
//	gradient[rows] ─▶ …                                            the next slice
//	                                 all slices ─▶ Concat ─▶ P.new   over itself
//
// The gradient's slices are computed once, one at a time. P.new stays an output, so who
// binds nothing finds what it found before.
//
// Weakness: only slices along the first axis are one piece of memory; where another axis is
// the better one, the slices wait as before.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// BoundRows is Rows for a caller that binds slices onto rows of inputs.
func BoundRows(m *onnx.Model, types build.Typer, next []*onnx.Value, forward func(*onnx.Node) bool, want int) (found, applied int, skipped []*SkipError, err error) {
	return divideUpdates(m, types, next, forward, want, true)
}

// giveOut makes outputs of values, named after the one that they are parts of, and returns
// the names.
func giveOut(g *onnx.Graph, of *onnx.Value, parts []*onnx.Value) []string {
	names := make([]string, len(parts))
	for i, v := range parts {
		g.Rename(v, g.FreshValueName(fmt.Sprintf("%s.%d", of.Name, i)))
		g.AddOutput(v)
		names[i] = v.Name
	}
	return names
}
