package runtime

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestStateBehindBarrier: a loss in slices may wait for an update. The state that
// is updated stays state, which starts as zeros: the loss does not depend on it.
func TestStateBehindBarrier(t *testing.T) {
	m, err := onnx.Parse(`model ir=9 opset=20
graph g {
in x float32[4]
in w float32[4]
in w.m float32[4]
init all int64[1] = [-1]
init zero int64[1] = [0]
init four int64[1] = [4]
init half float32[] = 0.5
h = Mul(x, w)
w.m.new = Add(w.m, h)
step = Mul(w.m.new, half)
w.new = Sub(w, step)
flat = Reshape(w.m.new, all)
none = Slice(flat, zero, zero)
no = Cast(none) {to=7}
shape = Concat(four, no) {axis=0}
late = Reshape(h, shape)
loss = ReduceMean(late) {keepdims=0}
out loss float32[]
out w.new float32[4]
out w.m.new float32[4]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	r := Roles{Loss: "loss", New: map[string]string{"w": "w.new", "w.m": "w.m.new"}}
	parameters, state, err := SortInputs(m, r)
	if err != nil || len(parameters) != 1 || parameters[0] != "w" || len(state) != 1 || state[0] != "w.m" {
		t.Fatalf("parameters %v, state %v, %v", parameters, state, err)
	}
}

// TestStateOfPart: a part of a step that holds sums of gradients and no parameter, as a
// stage may, has an entry of places that is empty. Its sums are state, and start as zeros.
func TestStateOfPart(t *testing.T) {
	m, err := onnx.Parse(`model ir=9 opset=20
graph g {
in g float32[4]
in b.acc float32[4]
b.acc.new = Add(b.acc, g)
out b.acc.new float32[4]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	m.SetMetadata(ParametersKey, "{}")
	r := Roles{New: map[string]string{"b.acc": "b.acc.new"}}
	parameters, state, err := SortInputs(m, r)
	if err != nil || len(parameters) != 0 || len(state) != 1 || state[0] != "b.acc" {
		t.Fatalf("parameters %v, state %v, %v", parameters, state, err)
	}
}
