package rewrite

// The schedule is carried by the file: ONNX Runtime runs nodes in an order that
// follows from their places in the file (ortmodel.Order), so the wanted order
// is turned into places (ortmodel.FileOrder). What places cannot express is
// said by data first (controledge.go), so that the order is met node for node.

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
)

// Schedule puts the model's nodes into the file order that makes ONNX Runtime
// run them in the given order, which must be topological, and returns the order
// with the control edges that it takes. The reports are of the control edges and of the
// nodes that run at their place.
func Schedule(m *onnx.Model, order []*onnx.Node) ([]*onnx.Node, []Report, error) {
	report := Report{Pass: "schedule", Requested: len(order)}
	if len(order) != len(m.Graph.Nodes) {
		return nil, nil, fmt.Errorf("pass schedule: an order of %d nodes for a graph of %d", len(order), len(m.Graph.Nodes))
	}
	order, edges, err := addEdges(m, order)
	if err != nil {
		return nil, nil, fmt.Errorf("pass schedule: %w", err)
	}
	report.Requested = len(order)
	om := step.Structure(m.Graph)
	file, _ := ortmodel.FileOrder(om, ortmodel.FileSchedule(len(order)))
	nodes := make([]*onnx.Node, len(file))
	for i, f := range file {
		nodes[i] = order[f]
	}
	m.Graph.Nodes = nodes
	for i, k := range ortmodel.Order(ortmodel.Permute(om, file)) {
		if file[k] == i {
			report.Applied++
		} else if len(report.Skipped) < 3 {
			report.skip(order[i].Label(), "ONNX Runtime's default order cannot run it at position %d", i)
		}
	}
	return order, []Report{edges, report}, nil
}

// RunOrder is the order in which ONNX Runtime runs the graph's nodes as they
// stand in the file.
func RunOrder(g *onnx.Graph) []*onnx.Node {
	order := ortmodel.Order(step.Structure(g))
	nodes := make([]*onnx.Node, len(order))
	for i, k := range order {
		nodes[i] = g.Nodes[k]
	}
	return nodes
}
