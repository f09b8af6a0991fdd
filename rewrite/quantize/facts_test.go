package quantize

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// product is one with codes that are widened, for ONNX Runtime to fuse.
func product(t *testing.T, kind Kind) *onnx.Model {
	t.Helper()
	m := onnx.NewModel("product", opset)
	data, _ := wave(64, 32).Bytes()
	cuts, err := cut([]int64{64, 32}, 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	codes, scales, _ := cuts.encode(data, kind)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4, 64)))
	q := m.Graph.AddConstant("q", onnx.NewTensor(kind.dtype(), []int64{64, 32}, codes))
	s := m.Graph.AddConstant("s", onnx.NewTensor(onnx.Float32, []int64{2, 32}, scales))
	w := m.Graph.NewNode("", "DequantizeLinear", "w", []*onnx.Value{q, s}, []string{"w"}, onnx.IntAttr("axis", 0), onnx.IntAttr("block_size", 32))
	w.Outputs[0].Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape(64, 32))
	y := m.Graph.NewNode("", "MatMul", "y", []*onnx.Value{x, w.Outputs[0]}, []string{"y"})
	m.Graph.Append(w, y)
	m.Graph.AddOutput(y.Outputs[0])
	return m
}

// left are the operators that ONNX Runtime leaves of a model at its highest level.
func left(t *testing.T, m *onnx.Model) (list []string) {
	t.Helper()
	d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: 99, Threads: 1, Provider: ort.CPU})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range d.Graph.Nodes {
		list = append(list, n.OpType())
	}
	return list
}

// TestFused: a product of widened codes becomes one operator of ONNX Runtime's own,
// with codes in a layout of its own and other bits; past an edge it does not.
func TestFused(t *testing.T) {
	for _, kind := range []Kind{Int8, Int4} {
		m := product(t, kind)
		if got := left(t, m); !slices.Contains(got, "MatMulNBits") {
			t.Errorf("%s: %q is not fused", kind, got)
		}
		if err := Apart(m.Graph); err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		if got := left(t, m); slices.Contains(got, "MatMulNBits") || !slices.Contains(got, "DequantizeLinear") {
			t.Errorf("%s: %q is fused", kind, got)
		}
	}
}

// TestNoView: no view of elements of four bits has a kernel.
func TestNoView(t *testing.T) {
	for _, c := range []struct {
		dtype onnx.DType
		runs  bool
	}{{onnx.Int8, true}, {onnx.Int4, false}} {
		m := onnx.NewModel("view", opset)
		x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(1)))
		axes := m.Graph.AddConstant("axes", onnx.Int64Tensor([]int64{0}, 1))
		q := m.Graph.AddConstant("q", onnx.NewTensor(c.dtype, []int64{2}, make([]byte, 2*c.dtype.Bits()/8)))
		view := m.Graph.NewNode("", "Unsqueeze", "view", []*onnx.Value{q, axes}, []string{"view"})
		wide := m.Graph.NewNode("", "DequantizeLinear", "wide", []*onnx.Value{view.Outputs[0], x}, []string{"y"})
		m.Graph.Append(view, wide)
		m.Graph.AddOutput(wide.Outputs[0])
		if _, err := ortest.Try(t, m, map[string]*onnx.Tensor{"x": onnx.Float32Tensor([]float32{1}, 1)}); (err == nil) != c.runs {
			t.Errorf("%s: %v", c.dtype, err)
		}
	}
}
