package runtime

// When the next value of a parameter may be written over the parameter.
//
//	W ──▶ reader … ──▶ update ──▶ W.new          both in the same memory
//
// ONNX Runtime does not see that they share it, so every reader of W, and of
// what aliases W, must run before the update begins to write. In a graph that
// runs as it stands, a data dependency from each reader to the update proves
// that. Where there is none, and wherever ONNX Runtime optimizes the graph (it
// makes a product of a transposed W one of W, and takes views out), the order
// decides in which it lists the nodes of what it made, for this session's
// options. Where that does not prove it, the next value gets memory of its own
// and is copied after the step.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// updateSafe says whether every reader of in, but for a pointwise update
// itself, runs before the node that makes out, or, in the way Rows, before each that
// makes rows of it which it reads.
func updateSafe(in, out *onnx.Value, way step.Outputs, before func(a, b *onnx.Node) bool) bool {
	if out.Producer == nil || !in.Type.Same(out.Type) {
		return false
	}
	for _, w := range step.WritersOf(out, way) {
		for _, r := range step.ReadersOf(in, w.Node, traits.Aliases) {
			if r == w.Node {
				if !step.Pointwise(r) {
					return false
				}
				continue
			}
			if !before(r, w.Node) && !w.Spares(in, r) {
				return false
			}
		}
	}
	return true
}

// byData reports that one node runs before another because that one needs it.
func byData(g *onnx.Graph) func(a, b *onnx.Node) bool {
	deps := step.DependenciesOf(g)
	return func(a, b *onnx.Node) bool { return deps.Needs(step.Any, b, a) }
}

// InPlace lists the outputs that a session would write over inputs, next values and in the way
// Rows their parts, and in that way what it would sum up in one memory. executed gives the graph
// that ONNX Runtime runs, in order, or g itself where that is not known.
func InPlace(g *onnx.Graph, roles step.Roles, way step.Outputs, executed func() (*onnx.Graph, error)) ([]string, error) {
	if way == step.Returned || !roles.Leave() {
		return nil, nil
	}
	run, err := executed()
	if err != nil {
		return nil, err
	}
	level := 0
	if run != g {
		level = 1
	}
	executed = func() (*onnx.Graph, error) { return run, nil }
	safe, err := inPlace(g, roles.New, way, level, executed)
	if err != nil {
		return nil, err
	}
	var bound []string
	for in, out := range roles.New {
		if safe[in] {
			bound = append(bound, onnx.Names(step.BoundWith(g.Value(out), way))...)
		}
	}
	sums, err := summed(g, roles, way, level, executed)
	for _, s := range sums {
		bound = append(bound, s.outputs...)
	}
	slices.Sort(bound)
	return bound, err
}

// inPlace splits the roles' next values into those that may share their
// input's memory and the rest. executed gives the graph that ONNX Runtime runs
// at the level of optimization, in order; at level 0 it is asked for only where
// data dependencies do not decide.
func inPlace(g *onnx.Graph, next map[string]string, way step.Outputs, level int, executed func() (*onnx.Graph, error)) (map[string]bool, error) {
	safe := map[string]bool{}
	var open []string
	before := byData(g)
	for in, out := range next {
		if v := g.Value(in); v == nil || v.Init != nil {
			continue // an initializer stays what it is
		}
		if safe[in] = level == 0 && updateSafe(g.Value(in), g.Value(out), way, before); !safe[in] {
			open = append(open, in)
		}
	}
	if len(open) == 0 {
		return safe, nil
	}
	run, err := executed()
	if err != nil {
		return nil, err
	}
	place := onnx.Places(run.Nodes)
	for _, in := range open {
		v, out := run.Value(in), run.Value(next[in])
		safe[in] = v != nil && out != nil && sameNames(step.BoundWith(out, way), step.BoundWith(g.Value(next[in]), way)) &&
			updateSafe(v, out, way, func(a, b *onnx.Node) bool { return place[a] < place[b] })
	}
	return safe, nil
}

// sameNames reports lists of values with the same names.
func sameNames(a, b []*onnx.Value) bool {
	return slices.EqualFunc(a, b, func(v, w *onnx.Value) bool { return v.Name == w.Name })
}
