package pipeline

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/precision"
)

// TestRounding: what may change the last bits is said, and nothing is where all bits stay.
func TestRounding(t *testing.T) {
	graph := func(dtype string) *onnx.Model {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x " + dtype + "[2]\ns = Exp(x)\nz = Cast(s) {to=1}\nout z float32[2]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if err := (&preparation{Variant: Variant{Model: m}}).inferTypes(); err != nil {
			t.Fatal(err)
		}
		return m
	}
	draws := func(pass string) *onnx.Model {
		m := graph("float32")
		x := m.Graph.Inputs[0]
		n := m.Graph.NewNode("", "RandomNormalLike", "r", []*onnx.Value{x}, []string{"r"})
		n.SetOrigin(onnx.Origin{Pass: pass})
		m.Graph.Nodes = append(m.Graph.Nodes, n)
		return m
	}
	for _, c := range []struct {
		name string
		v    Variant
		done []rewrite.Report
		want string
	}{
		{"nodes in order", Variant{Model: graph("float32")}, []rewrite.Report{{Pass: "schedule", Requested: 2, Applied: 2}}, ""},
		{"lookups", Variant{Model: graph("float32")}, []rewrite.Report{{Pass: "scatter", Requested: 1, Applied: 1}}, "gradients of lookups added in place"},
		{"no lookup", Variant{Model: graph("float32")}, []rewrite.Report{{Pass: "scatter", Requested: 1}}, ""},
		{"draws in parts", Variant{Model: draws("batch"), Divided: Divided{Batch: 4}}, []rewrite.Report{{Pass: "batch", Requested: 1, Applied: 1}}, "other random numbers: each of 4 micro-batches"},
		{"draws whole", Variant{Model: draws("grad")}, nil, ""},
		{"half", Variant{Model: graph("float16")}, nil, "half values"},
		{"half on CUDA", Variant{Model: graph("float16"), Options: Options{CUDA: true}}, nil, ""},
		{"half as asked", Variant{Model: graph("float16"), Options: Options{Precision: &precision.Options{}}}, nil, ""},
	} {
		f := &File{Variant: &c.v, Reports: c.done}
		if got := f.Rounding(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
