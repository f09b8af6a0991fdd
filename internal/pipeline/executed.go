package pipeline

// The graph that ONNX Runtime makes of a model, told from that of a few of its layers.
//
//	m:         … ─ 1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6 ─ …   k = constant
//	asked:     … ─ 1 ─────────────── 6 ─ …      left as it is, but for k
//	therefore: … ─ 1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6 ─ …    without k's node
//
// Where ONNX Runtime leaves the nodes of those layers as they are (rewrite.Reroll), it leaves the others'
// so, and of the rest it only computes constants ahead: then the model itself, with those, is what it makes.
// Where it makes anything else, it is asked about all, as it is about a graph of another tool, of which it
// would often change some nodes at the ends, and of free extents. A device's provider adds copies.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// fewOf is the share of the nodes that has to be set aside for ONNX Runtime to be asked about the rest
// first, as 1 of so many.
var fewOf = 3 // a test has others

// executed is the graph that ONNX Runtime executes for a model, as Engine.Dump returns it, asked about a
// few layers of many where that tells the rest.
func executed(e *runtime.Engine, m *onnx.Model, o ort.SessionOptions) (*onnx.Model, error) {
	if IsOurs(m) && o.Provider == ort.CPU && len(o.Dims) == 0 && !m.Graph.Fixed() && !slices.ContainsFunc(m.Graph.Inputs, free) {
		if told, err := executedOfFew(e, m, o); told != nil || err != nil {
			return told, err
		}
	}
	return e.Dump(m, o)
}

// free reports a value of extents that are not known.
func free(v *onnx.Value) bool { return !v.Type.IsStatic() }

// executedOfFew is executed where a few layers tell what becomes of all; else nil.
func executedOfFew(e *runtime.Engine, m *onnx.Model, o ort.SessionOptions) (*onnx.Model, error) {
	all := len(m.Graph.Nodes)
	rerolled := rewrite.Reroll(m.Graph, rewrite.OneBeside)
	if all-len(m.Graph.Nodes) < all/fewOf {
		rerolled.Restore()
		return nil, nil
	}
	d, err := e.Left(m, o)
	if err != nil {
		rerolled.Restore()
		return nil, err
	}
	defer d.Close()
	gone, kept := goneFrom(m.Graph, d.Graph, sameName)
	left := rerolled.Unroll(rewrite.NewLeft(d.Graph))
	if !kept || left == nil || left.Lacks(m.Graph) != len(gone) {
		return nil, nil
	}
	made, err := asRead(m, nil)
	if err != nil {
		return nil, err
	}
	for _, n := range gone {
		for _, v := range n.Returns() {
			if c := d.Graph.Value(v.Name); c != nil && c.Init != nil {
				rewrite.Fold(made.Graph, made.Graph.Value(v.Name), c.Init)
			}
		}
	}
	made.Graph.RemoveDead()
	if len(made.Graph.Nodes) != all-len(gone) {
		return nil, made.Close() // some that nobody reads are left
	}
	made.Graph.Nodes = rewrite.RunOrder(made.Graph)
	return made, nil
}
