package kernels

import (
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

func node(t *testing.T, opset, line string) (*onnx.Model, *onnx.Node) {
	t.Helper()
	m, err := onnx.Parse("model ir=10 opset=" + opset + "\ngraph main {\n" + line + "\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	return m, m.Graph.Nodes[0]
}

func TestSupports(t *testing.T) {
	for _, c := range []struct {
		opset, body string
		cpu, cuda   bool
	}{
		{"20", "in x float32[2,2]\ny = MatMul(x, x)\nout y float32[2,2]", true, true},
		{"20", "in x float16[2,2]\ny = MatMul(x, x)\nout y float16[2,2]", false, true},
		{"20", "in x bfloat16[2,2]\ny = MatMul(x, x)\nout y bfloat16[2,2]", false, true},
		{"20", "in x bfloat16[2,2]\ny = Transpose(x) {perm=[1, 0]}\nout y bfloat16[2,2]", true, true},
		{"20", "in x float16[2,2]\nin w float16[2]\ny = LayerNormalization(x, w)\nout y float16[2,2]", false, true},    // the CPU since 1.20
		{"20", "in x bfloat16[2,2]\nin w bfloat16[2]\ny = LayerNormalization(x, w)\nout y bfloat16[2,2]", false, true}, // since 1.30
		{"20", "in x float64[2,2]\ny = Gelu(x)\nout y float64[2,2]", false, true},
		{"15", "in c bool[2]\nin x bfloat16[2]\ny = Where(c, x, x)\nout y bfloat16[2]", false, false},
		{"16", "in c bool[2]\nin x bfloat16[2]\ny = Where(c, x, x)\nout y bfloat16[2]", false, true},
		{"20", "in x float32[2,2]\ny = Cast(x) {to=16}\nout y bfloat16[2,2]", true, true},
	} {
		m, n := node(t, c.opset, c.body)
		typeOf := func(v *onnx.Value) onnx.DType { return v.Type.DType }
		if got := Supports(CPU, n, m.Opset(""), typeOf); got != c.cpu {
			t.Errorf("opset %s, %s on the CPU: %v, want %v", c.opset, n.OpType(), got, c.cpu)
		}
		if got := Supports(CUDA, n, m.Opset(""), typeOf); got != c.cuda {
			t.Errorf("opset %s, %s on CUDA: %v, want %v", c.opset, n.OpType(), got, c.cuda)
		}
	}
}

// TestSamplesHaveKernels: ONNX Runtime runs every sample on the CPU, so the
// table must have all their kernels.
func TestSamplesHaveKernels(t *testing.T) {
	paths, err := filepath.Glob("../../../testdata/models/*.onnx")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, path := range paths {
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		for _, missing := range Check(m, CPU) {
			t.Errorf("%s: %s", filepath.Base(path), missing)
		}
	}
}

func TestCheck(t *testing.T) {
	m, _ := node(t, "20", "in x bfloat16[2,2]\nin k int64[2]\ny = MatMul(x, x)\nz = Reshape(y, k)\nout z bfloat16[2,2]")
	got := Check(m, CPU)
	if len(got) != 1 || got[0].Op != "MatMul" || len(got[0].Types) != 2 || got[0].Types[0] != onnx.BFloat16 {
		t.Errorf("missing on the CPU: %v", got)
	}
	if got := Check(m, CUDA); len(got) != 0 {
		t.Errorf("missing on CUDA: %v", got)
	}
}
