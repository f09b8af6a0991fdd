package predict

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestShortProducts: for a product that CUDA's kernel leaves unfinished it asks for no
// tables of addresses, without which it cannot know which matrices belong together; with
// an operand broadcast it does, one for each product.
func TestShortProducts(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	for _, c := range []struct {
		a, b string
		all  int64 // products
	}{
		{"2,1,4,6", "1,2,6,5", 4}, {"2,1,4,6", "2,6,5", 4}, {"3,4,6", "3,1,6,5", 9}, {"2,1,2,4,6", "1,4,1,6,5", 16},
	} {
		m, err := onnx.Parse("model ir=10 opset=18\ngraph g {\nin a float32[" + c.a + "]\nin b float32[" + c.b + "]\ny = MatMul(a, b)\nout y float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		types, err := infer.Model(m, infer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		tables := func() (sizes []int64) {
			m.Graph.NameNodes()
			path := filepath.Join(t.TempDir(), "m.onnx")
			if err := m.Save(path); err != nil {
				t.Fatal(err)
			}
			real, err := measure(path, ort.SessionOptions{Threads: 1, Provider: ort.CUDA}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range real.events {
				if e.Alloc && e.Bytes == 8*c.all {
					sizes = append(sizes, e.Bytes)
				}
			}
			return sizes
		}
		if got := tables(); len(got) > 0 {
			t.Errorf("[%s] x [%s]: asks for tables of %d bytes: its products may be right", c.a, c.b, got)
		}
		if r, err := rewrite.Broadcast(m.Graph, types); err != nil || r.Applied != 1 {
			t.Fatalf("[%s] x [%s]: %+v, %v", c.a, c.b, r, err)
		}
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		for _, n := range m.Graph.Nodes {
			if why := traits.WhyShort(n); why != "" {
				t.Errorf("[%s] x [%s], broadcast: %s", c.a, c.b, why)
			}
		}
		if got := tables(); fmt.Sprint(got) != fmt.Sprint([]int64{8 * c.all, 8 * c.all, 8 * c.all}) {
			t.Errorf("[%s] x [%s], broadcast: tables of %d bytes, want three of %d", c.a, c.b, got, 8*c.all)
		}
	}
}
