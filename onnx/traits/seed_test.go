package traits_test

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

const noisy = `model ir=9 opset=20
graph g {
  in x float32[4]
  in r float32[]
  in on bool[]
  init off bool[] = false
  a = RandomNormalLike(x) "one"
  b = RandomNormalLike(x) "two"
  c = RandomUniform() {shape=[4], seed=5.0} "three"
  d = Dropout(x, r, on) "four"
  e = Dropout(x, r, on) {seed=5} "five"
  f = Dropout(x, r, off) "idle"
  h = Dropout(x) "inference"
  out a float32[4]
}`

// TestSeeds: each node that draws gets a seed of its own, and shifted seeds stay
// as equal and as different as they were.
func TestSeeds(t *testing.T) {
	m, err := onnx.Parse(noisy)
	if err != nil {
		t.Fatal(err)
	}
	nodes := traits.Drawing(m.Graph)
	if len(nodes) != 5 {
		t.Fatalf("%d nodes draw, want 5", len(nodes))
	}
	if n := traits.FixSeeds(nodes); n != 3 {
		t.Errorf("%d got a seed, want 3", n)
	}
	seeds := func() []float64 {
		var list []float64
		for _, n := range nodes {
			if n.Is("Dropout") {
				list = append(list, float64(n.Int("seed", -1)))
			} else {
				list = append(list, n.Float("seed", -1))
			}
		}
		return list
	}
	before := seeds()
	if before[2] != 5 || before[4] != 5 {
		t.Errorf("seeds %v: want those that were given kept", before)
	}
	if before[0] == before[1] || before[0] == before[3] || before[1] == before[3] {
		t.Errorf("seeds %v: want different ones for nodes that had none", before)
	}
	traits.ShiftSeeds(nodes, 1)
	for i, s := range seeds() {
		if s == before[i] || s < 0 {
			t.Errorf("seed %d is %g, before the shift %g", i, s, before[i])
		}
		for j := range i {
			same := before[i] == before[j] && nodes[i].Is("Dropout") == nodes[j].Is("Dropout")
			if same != (seeds()[j] == s) {
				t.Errorf("seeds %v after a shift of %v", seeds(), before)
			}
		}
	}
}
