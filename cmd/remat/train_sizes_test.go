package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// TestTrainBySizesOfData: a size that data alone tells is that of the first batch, also in a
// part of it, and train says so; where a parameter has a part in it, what is taken is said to
// be a lower bound.
func TestTrainBySizesOfData(t *testing.T) {
	at := newFolder(t).at
	for name, test := range map[string]string{"fed": "x", "trained": "h"} {
		m, err := onnx.Parse(`model ir=10 opset=20
graph g {
in x float32[batch,16]
init w float32[16,16] = [` + strings.TrimSuffix(strings.Repeat("0.125, -0.25, ", 128), ", ") + `]
init zero float32[] = 0
h = MatMul(x, w)
up = Greater(` + test + `, zero)
at = NonZero(up)
places = Transpose(at) {perm=[1,0]}
z = GatherND(h, places)
q = Mul(z, z)
loss = ReduceSum(q) {keepdims=0}
out loss float32[]
}
`)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Save(at(name + ".onnx")); err != nil {
			t.Fatal(err)
		}
	}
	values := make([]float32, 8*16)
	for i := range values {
		values[i] = float32(i%3 - 1)
	}
	if err := remat.WriteNPZ(at("d.npz"), map[string]remat.Tensor{"x": remat.FromFloat32s(values, 8, 16)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ model, accumulate, want string }{
		{"fed", "1", "sizes that data alone tells are those of the first batch"},
		{"fed", "2", "sizes that data alone tells are those of the first batch"},
		{"trained", "1", "takes at least, as not all sizes are known, "},
	} {
		var out, stderr bytes.Buffer
		args := []string{"train", at(c.model + ".onnx"), "--data", at("d.npz"), "--batch", "4", "--accumulate", c.accumulate, "--steps", "1", "-o", at(c.model + c.accumulate)}
		if code := run(context.Background(), args, &out, &stderr); code != exitDone {
			t.Fatalf("%v: exit code %d, %s", args, code, stderr.String())
		}
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: %s", args, out.String())
		}
	}
}
