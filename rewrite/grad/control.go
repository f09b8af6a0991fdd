package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/unpack"
)

// openControl opens control flow that a gradient would have to pass, and what
// comes out of it, and returns the engine and the loss of the graph then.
// Candidates are what may be trained, by the names that they keep.
func (e *engine) openControl(types *infer.Result, loss *onnx.Value, candidates map[*onnx.Value]bool, o Options) (*engine, *infer.Result, *onnx.Value, error) {
	m, name := e.m, loss.Name
	for slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return len(n.Subgraphs()) > 0 }) {
		reach, depends := e.reached(loss), e.depending(candidates)
		passes := func(n *onnx.Node) bool {
			return slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return reach[v] && depends[v] })
		}
		opened, closed, err := normalize.Open(m, normalize.Options{Dims: o.Dims}, passes)
		if err != nil {
			return nil, nil, nil, err
		}
		if opened == 0 {
			e.closed = closed
			return e, types, loss, nil
		}
		stopJAX(m.Graph)
		if err := o.After.See("open control flow", m); err != nil {
			return nil, nil, nil, err
		}
		if types, err = normalized(m, o); err != nil {
			return nil, nil, nil, err
		}
		e, loss = newEngine(m, types, o.Dialect), m.Graph.Value(name)
	}
	return e, types, loss, nil
}

// depending lists the float values that a candidate, or a float input, goes into.
func (e *engine) depending(candidates map[*onnx.Value]bool) map[*onnx.Value]bool {
	depends := map[*onnx.Value]bool{}
	for v := range candidates {
		depends[v] = true
	}
	for _, v := range e.m.Graph.Inputs {
		depends[v] = v.Type.DType.IsFloat()
	}
	for _, n := range e.m.Graph.Nodes {
		hit := false
		for _, list := range [][]*onnx.Value{n.Inputs, n.Captures} {
			for _, v := range list {
				hit = hit || v != nil && depends[v]
			}
		}
		for _, v := range n.Returns() {
			if hit {
				depends[v] = v.Type.DType.IsFloat() || v.Type.DType == onnx.Undefined
			}
		}
	}
	return depends
}

// controlFlow says why a gradient cannot pass a node with subgraphs.
func (e *engine) controlFlow(n *onnx.Node) error {
	why := "no gradient passes control flow: export the model with its loops unrolled and its branches decided"
	if reason := e.closed[n]; reason != "" {
		why = reason
	}
	if e.lists {
		joint := ": "
		if saysWhatToDo(why) {
			joint = "; or "
		}
		why += joint + otherThanLists
	}
	return &UnsupportedError{Op: n.OpType(), Node: n.Label(), Reason: why}
}

// normalized opens packed weights, runs the normalizing passes once more and infers.
func normalized(m *onnx.Model, o Options) (*infer.Result, error) {
	for {
		if _, err := unpack.Model(m); err != nil {
			return nil, err
		}
		if _, err := normalize.Model(m, normalize.Options{Dims: o.Dims, After: o.After}); err != nil {
			return nil, err
		}
		if !unpack.In(m.Graph) { // of a branch that is in place now
			break
		}
	}
	m.Graph.NameNodes()
	seedDropouts(m.Graph)
	return infer.Model(m, infer.Options{Dims: o.Dims})
}
