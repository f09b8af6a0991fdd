package onnx

import (
	"testing"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// TestImportsAgain: an operator set that is imported again at the same version, as
// scikit-learn's exporter does, is imported once; at another version the file is refused.
func TestImportsAgain(t *testing.T) {
	for again, bad := range map[int64]bool{20: false, 19: true} {
		m, err := Parse("model ir=9 opset=20\ngraph g {\nin x float32[2]\na = Relu(x)\nout a float32[2]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		domain := "ai.onnx"
		m.Proto.OpsetImport = append(m.Proto.OpsetImport, &pb.OperatorSetIdProto{Domain: &domain, Version: &again})
		if err := saved(t, m).Check(); (err != nil) != bad {
			t.Errorf("imported again at %d: %v", again, err)
		}
	}
}

// TestImportLeftOut: ONNX Runtime takes operators of its own without an import, and so they are imported
// when a file is read.
func TestImportLeftOut(t *testing.T) {
	m, err := Parse("model ir=9 opset=20\ngraph g {\nin x float32[2]\na = Relu(x)\nout a float32[2]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	domain := "com.microsoft"
	m.Graph.Nodes[0].Proto.Domain = &domain
	if m = saved(t, m); m.Opset(domain) != 1 {
		t.Errorf("imported at version %d", m.Opset(domain))
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
