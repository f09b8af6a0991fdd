package pipeline

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestLeastIsJudged: of the plans that two searches find, least takes by what their files hold,
// not by the searches' own count. A nanoGPT held 658 KiB by that; and no other plan's file
// holds less than the one taken.
func TestLeastIsJudged(t *testing.T) {
	e := engine(t)
	s, _, err := planner.Find("least")
	if err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]int64{"gpt2_tiny.dyn.onnx": 578104, "nanogpt_tril.ts_op17.onnx": 649220} {
		t.Run(name, func(t *testing.T) {
			m, _, dims := derived(t, sample(name))
			withOptimizer(t, m, differentiated(m), optim.Defaults(optim.AdamW))
			p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Dims: dims})
			if err != nil {
				t.Fatal(err)
			}
			f, err := p.least(s, s.Name, p.asked, Budget{})
			if err != nil {
				t.Fatal(err)
			}
			if f.Peak > most {
				t.Errorf("holds %d bytes, want at most %d", f.Peak, most)
			}
			for v, err := range p.variants(s, p.asked) {
				if err != nil {
					t.Fatal(err)
				}
				list, err := v.solve(s, s.Name)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range list {
					other, err := p.file(c, Budget{})
					if err != nil {
						t.Fatal(err)
					}
					if other.Peak < almost(f.Peak) {
						t.Errorf("in parts %v: a plan's file holds %d bytes, the one taken %d", v.Divided, other.Peak, f.Peak)
					}
				}
			}
		})
	}
}

// TestLeastOfSmallLoss: a loss of few rows has no slices that are fast, and the least has it in slices all the same.
func TestLeastOfSmallLoss(t *testing.T) {
	weights := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat("0.25,-0.5,0.125,0.5,", n/4), ",") + "]"
	}
	m := trainedBy(t, optim.SGD, `model ir=10 opset=20
graph g {
  in x float32[64,16]
  in y int64[64]
  init w1 float32[16,256] = `+weights(16*256)+`
  init w2 float32[256,8] = `+weights(256*8)+`
  h = MatMul(x, w1)
  a = Tanh(h)
  z = MatMul(a, w2)
  loss = SoftmaxCrossEntropyLoss(z, y)
  out loss float32[]
}
`, "*")
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("least", 0)
	if err != nil {
		t.Fatal(err)
	}
	if f.Variant.Divided.Loss != 4 || f.Peak > p.Before.LivePeak*3/4 {
		t.Errorf("the loss in %d slices, %d bytes of %d", f.Variant.Divided.Loss, f.Peak, p.Before.LivePeak)
	}
}
