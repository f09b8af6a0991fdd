package analysis

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/planner"
)

// chain is three products under two weights that are updated. W2 stands for what the
// last two read of w2, MORE for what is made between.
const chain = `model ir=9 opset=20
graph g {
in x float32[8,4]
in m float32[4,4]
in w1 float32[4,4]
in w2 float32[4,4]
init all int64[1] = [-1]
init zero int64[1] = [0]
a1 = MatMul(x, w1)
h1 = Tanh(a1)
m.new = Neg(m)
MORE
a2 = MatMul(h1, W2)
h2 = Tanh(a2)
a3 = MatMul(h2, W2)
h3 = Tanh(a3)
loss = ReduceMean(h3) {keepdims=0}
w1.new = Neg(w1)
w2.new = Neg(w2)
out loss float32[]
out w1.new float32[4,4]
out w2.new float32[4,4]
out m.new float32[4,4]
}
`

// TestWaitsCarryNothing: what a node only waits for tells nothing of what it is
// made of. A weight that waits for an activation is a weight, and no layer's
// boundary is lost to it; state that a weight waits for is state. All the same it
// runs before the loss.
func TestWaitsCarryNothing(t *testing.T) {
	text := func(more, w2 string) string {
		return strings.NewReplacer("MORE\n", more, "W2", w2).Replace(chain)
	}
	_, plain := analyzeText(t, text("", "w2"))
	if n := plain.Problem.LayerCount(); n != 3 {
		t.Fatalf("%d layers, want 3", n)
	}
	const none = "flat = Reshape(LATE, all)\nnone = Slice(flat, zero, zero)\nno = Cast(none) {to=7}\n"
	const counted = "count = Size(LATE)\none = Unsqueeze(count, zero)\nno = Slice(one, zero, zero)\n"
	const reshaped = "extents = Shape(w2)\nto = Concat(extents, no) {axis=0}\nbarred = Reshape(w2, to)\n"
	const unsqueezed = "barred = Unsqueeze(w2, no)\n"
	for _, late := range []string{"h1", "m.new"} {
		for _, more := range []string{none + reshaped, none + unsqueezed, counted + reshaped, counted + unsqueezed} {
			m, a := analyzeText(t, text(strings.ReplaceAll(more, "LATE", late), "barred"))
			if n := a.Problem.LayerCount(); n != 3 {
				t.Errorf("%d layers, want 3, behind\n%s", n, more)
			}
			role := func(v string) planner.Role { return a.Problem.Values[a.Index[m.Graph.Value(v)]].Role }
			if role("m") != planner.State || role("w2") != planner.Parameter {
				t.Errorf("m is %v, w2 is %v, behind\n%s", role("m"), role("w2"), more)
			}
			if !forward(a, late) {
				t.Errorf("%s does not run before the loss, behind\n%s", late, more)
			}
		}
	}
}

// forward reports that the maker of a value runs before the loss.
func forward(a *Analysis, name string) bool {
	for i, n := range a.Nodes {
		if n.Outputs[0].Name == name {
			return a.Problem.Ops[i].Forward
		}
	}
	return false
}
