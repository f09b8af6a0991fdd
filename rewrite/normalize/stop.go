package normalize

// A stop is an Identity through which no gradient flows, as PyTorch's detach and
// jax.lax.stop_gradient. PyTorch's dynamo exporter writes detach as an Identity and
// says on the node what call it comes from; InsertStop makes others. The passes
// keep stops, because without them nobody knows; RemoveStops takes them out when
// the gradient has been written.

import (
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Metadata keys of a node: what PyTorch's exporter says that it was, and who made
// a stop of it here.
const (
	fxNodeKey = "pkg.torch.onnx.fx_node"
	stopKey   = "remat.stop"
)

// StoppedBy says why no gradient flows through a node: the source that InsertStop
// was given, or "aten.detach"; "" where it is no stop.
func StoppedBy(n *onnx.Node) string {
	if !n.Is("Identity") {
		return ""
	}
	for _, p := range n.Proto.GetMetadataProps() {
		switch {
		case p.GetKey() == stopKey:
			return p.GetValue()
		case p.GetKey() == fxNodeKey && strings.Contains(p.GetValue(), "target=torch.ops.aten.detach"):
			return "aten.detach"
		}
	}
	return ""
}

// InsertStop lets every reader of v read it through a stop.
func InsertStop(g *onnx.Graph, v *onnx.Value, source string) {
	n := newStop(g, v, source)
	g.ReplaceUses(v, n.Out(0))
	n.SetInputs(v)
}

// InsertStopBefore lets input i of a node be read through a stop.
func InsertStopBefore(g *onnx.Graph, reader *onnx.Node, i int, source string) {
	v := reader.In(i)
	n := newStop(g, v, source)
	reader.SetInput(i, n.Out(0))
	n.SetInputs(v)
}

// newStop makes a stop for v, which reads nothing yet.
func newStop(g *onnx.Graph, v *onnx.Value, source string) *onnx.Node {
	key := stopKey
	n := g.NewNode("", "Identity", "remat/stop/"+v.Name, nil, []string{v.Name + ".stopped"})
	n.Proto.MetadataProps = append(n.Proto.MetadataProps, &pb.StringStringEntryProto{Key: &key, Value: &source})
	n.Out(0).Type = v.Type
	at := 0
	if v.Producer != nil {
		at = slices.Index(g.Nodes, v.Producer) + 1
	}
	g.Nodes = slices.Insert(g.Nodes, at, n)
	return n
}

// RemoveStops lets readers of stopped values read the values themselves. A stop
// that makes a graph output stays, an ordinary Identity.
func RemoveStops(g *onnx.Graph) {
	var gone []*onnx.Node
	for _, n := range g.Nodes {
		if StoppedBy(n) == "" {
			continue
		}
		g.ReplaceUses(n.Out(0), n.In(0))
		if !n.Out(0).IsOutput() {
			gone = append(gone, n)
		}
	}
	g.Remove(gone...)
}
