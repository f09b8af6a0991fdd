package onnx

// The encoding for a runtime that keeps what it reads for as long as it runs: names of
// values inside the graph and of nodes are short, and what only people and this program
// read is left out. What the graph computes, its types, the order of its nodes and the
// names of its inputs, outputs and initializers are as they were.
//
//	transformer.h.0.attn/MatMul_out  ─▶  v1f       value, unless a subgraph reads it
//	transformer.h.0.attn/MatMul      ─▶  n12       node, by its place in the file
//	metadata, doc strings            ─▶  nothing
//	the type of a value, no shape    ─▶  nothing: it follows from the value's node
//
// Short is below 16 bytes, which a std::string holds without memory of its own.

import (
	"strconv"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// EncodeLean is Encode without long names and metadata; nodes have LeanName's.
func (m *Model) EncodeLean() ([]byte, error) {
	p := m.ToProto()
	p.MetadataProps, p.DocString = nil, nil
	g := m.Graph
	short := g.shortNames()
	for i, n := range p.Graph.Node {
		q := &pb.NodeProto{}
		copyFields(q, n)
		q.Name = new(LeanName(i))
		q.MetadataProps, q.DocString = nil, nil
		q.Input, q.Output = shortened(n.Input, short), shortened(n.Output, short)
		p.Graph.Node[i] = q
	}
	p.Graph.MetadataProps, p.Graph.DocString = nil, nil
	infos := p.Graph.ValueInfo[:0]
	for _, v := range p.Graph.ValueInfo {
		name, inner := short[v.GetName()]
		if inner && v.GetType().GetTensorType() != nil && v.GetType().GetTensorType().Shape == nil {
			continue // the type of its elements follows from its node
		}
		if inner {
			v = &pb.ValueInfoProto{Name: &name, Type: v.Type}
		}
		infos = append(infos, v)
	}
	p.Graph.ValueInfo = infos
	return encode(p)
}

// LeanName is the name that EncodeLean gives the node at a place in the file.
func LeanName(place int) string { return "n" + strconv.Itoa(place) }

func shortened(names []string, short map[string]string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		if to, ok := short[name]; ok {
			name = to
		}
		out[i] = name
	}
	return out
}

// shortNames are new names of the values that nodes of the graph make for each other.
// Names that are seen from elsewhere stay: outputs, what subgraphs read, and what
// annotations of quantization speak of.
func (g *Graph) shortNames() map[string]string {
	stay := map[*Value]bool{}
	for _, n := range g.Nodes {
		for _, v := range n.Captures {
			stay[v] = true
		}
	}
	short := map[string]string{}
	if len(g.Proto.QuantizationAnnotation) > 0 {
		return short
	}
	next := int64(0)
	for _, n := range g.Nodes {
		for _, v := range n.Returns() {
			if v.IsOutput() || stay[v] {
				continue
			}
			for {
				name := "v" + strconv.FormatInt(next, 36)
				next++
				if g.values[name] == nil && !g.inSubgraph(name) {
					short[v.Name] = name
					break
				}
			}
		}
	}
	return short
}
