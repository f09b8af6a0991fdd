package normalize

// A stop is an Identity through which no gradient flows, as PyTorch's detach and
// jax.lax.stop_gradient. PyTorch's dynamo exporter writes detach as an Identity and
// says on the node what call it comes from; Stop makes one of another Identity, Stops makes others. The passes
// keep stops, because without them nobody knows; RemoveStops takes them out when
// the gradient has been written.

import (
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// stopKey is the metadata entry of a node that says who made a stop of it here.
const stopKey = "remat.stop"

// StoppedBy says why no gradient flows through a node: the source that Stop or
// Stops was given, or "aten.detach"; "" where it is not a stop.
func StoppedBy(n *onnx.Node) string {
	if !n.Is("Identity") {
		return ""
	}
	if source := n.Metadata(stopKey); source != "" {
		return source
	}
	if strings.Contains(n.TorchCall(), "target=torch.ops.aten.detach") {
		return "aten.detach"
	}
	return ""
}

// Stop makes a stop of an Identity.
func Stop(n *onnx.Node, source string) { n.SetMetadata(stopKey, source) }

// StoppedValue is the value of the file that a stop is about: the stop's own output,
// or what an inserted one reads.
func StoppedValue(n *onnx.Node) *onnx.Value {
	if n.Metadata(stopKey) != "" {
		return n.In(0)
	}
	return n.Out(0)
}

// Stops inserts stops, all at once when Apply is called.
type Stops struct {
	g  *onnx.Graph
	at *onnx.Insertions
}

// NewStops begins a batch.
func NewStops(g *onnx.Graph) *Stops { return &Stops{g, g.Insertions()} }

// Behind lets every reader of v read it through a stop.
func (s *Stops) Behind(v *onnx.Value, source string) {
	n := s.make(v, source)
	s.g.ReplaceUses(v, n.Out(0))
	n.SetInputs(v)
}

// Before lets input i of a node be read through a stop.
func (s *Stops) Before(reader *onnx.Node, i int, source string) {
	v := reader.In(i)
	n := s.make(v, source)
	reader.SetInput(i, n.Out(0))
	n.SetInputs(v)
}

// Apply puts the stops into the graph.
func (s *Stops) Apply() { s.at.Apply() }

// make makes a stop for v, which reads nothing yet.
func (s *Stops) make(v *onnx.Value, source string) *onnx.Node {
	n := s.g.NewNode("", "Identity", "remat/stop/"+v.Name, nil, []string{v.Name + ".stopped"})
	n.SetMetadata(stopKey, source)
	n.Out(0).Type = v.Type
	if v.Producer != nil {
		s.at.After(v.Producer, n)
	} else {
		s.at.Before(s.g.Nodes[0], n)
	}
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
