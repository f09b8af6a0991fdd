package upgrade

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/onnxpb"
)

// Functions writes the functions of a model out where they are called, but for those
// that ONNX Runtime has an operator of the same name for, which it runs. A function
// may import another version of the standard operators than the model if its own
// mean the same in both; where one does not, that is an error. It returns the
// number of calls.
func Functions(m *onnx.Model) (int, error) {
	version := m.Opset("")
	return m.InlineFunctions(infer.Provided, func(f *onnxpb.FunctionProto) error {
		for _, o := range f.OpsetImport {
			if onnx.NormalDomain(o.GetDomain()) != "" {
				continue
			}
			if c := changed(f.Node, min(o.GetVersion(), version), max(o.GetVersion(), version)); c != nil {
				return fmt.Errorf("function %s is of opset %d, the model of %d, and %s changed at %d: export both with one opset",
					f.GetName(), o.GetVersion(), version, c.op, c.at)
			}
		}
		return nil
	})
}

// changed returns what one of the nodes, or of those in their subgraphs, underwent
// after opset have and up to want; nil: nothing.
func changed(nodes []*onnxpb.NodeProto, have, want int64) *change {
	for _, p := range nodes {
		n := &onnx.Node{Proto: p}
		for i := range table {
			if c := &table[i]; n.Is(c.op) && have < c.at && c.at <= want {
				return c
			}
		}
		for _, sub := range n.Subgraphs() {
			if c := changed(sub.Node, have, want); c != nil {
				return c
			}
		}
	}
	return nil
}
