package infer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// FuzzInfer starts from the table's cases, which are small. It runs inference on damaged models: it may refuse them, and must not
// panic or run on. Extents that it finds are never negative.
func FuzzInfer(f *testing.F) {
	for _, c := range readCases(f) {
		path := filepath.Join(f.TempDir(), "case.onnx")
		if err := c.model.Save(path); err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := onnx.Decode(data, ".")
		if err != nil {
			return
		}
		defer m.Close()
		if m.Check() != nil {
			return
		}
		r, err := Model(m, Options{})
		if err != nil {
			return
		}
		for _, n := range m.Graph.Nodes {
			for _, v := range n.Outputs {
				if v == nil {
					continue
				}
				r.Const(v)
				if n.Domain() == "" && sane(v.Type.Shape) != nil && rows[key{"", n.OpType()}] != nil && m.Opset("") <= LastOpset {
					t.Errorf("%s: %s", n.Label(), v.Type)
				}
			}
		}
	})
}
