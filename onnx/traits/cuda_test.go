package traits

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestCUDA: what the CUDA provider's kernels do, as its sources say.
func TestCUDA(t *testing.T) {
	for k := range inPlaceOnCUDA {
		if _, known := OfOp(k.domain, k.op); !known {
			t.Errorf("%v has no row", k)
		}
	}
	sum := func(axes ...int64) *onnx.Node {
		m := onnx.NewModel("sum", 13)
		x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float16, onnx.StaticShape(8, 1, 64, 4096)))
		return m.Graph.NewNode("", "ReduceSum", "sum", []*onnx.Value{x, m.Graph.AddConstant("axes", onnx.Int64Tensor(axes, int64(len(axes))))}, []string{"y"})
	}
	for _, c := range []struct {
		name  string
		node  *onnx.Node
		bytes int64 // that the kernel borrows
	}{
		{"leading axes", sum(0, 1), 0},
		{"an axis of one", sum(1), 8*64*4096*(4+4) + 15},
		{"the last axis", sum(-1), 8*64*4*4 + 8*64*4 + 15}, // 4,096 columns: 8 warps, 4 blocks a row
		{"trailing axes", sum(2, 3), 8*256*4 + 8*4 + 15},
		{"all axes", sum(0, 1, 2, 3), 0},
		{"an axis between", sum(2), 8 * 64 * 4096 * 4}, // cuDNN's, in float
	} {
		k, ok := ScratchCUDA(c.node)
		got := int64(-1)
		if ok {
			got = 0
			if k != nil {
				for _, s := range k.Sizes {
					got += s
				}
			}
		}
		if got != c.bytes {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.bytes)
		}
	}
}
