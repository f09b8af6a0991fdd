package optim

import (
	"context"
	"math"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestGradientNorm: the output gradient_norm is the norm of the mean gradients of an
// update, whatever clips it, with gradients as they are and with such as arrive
// scaled; and the updates are those without it.
func TestGradientNorm(t *testing.T) {
	for name, o := range cases {
		o.Norm = true
		plain, params := toyModel(t)
		if _, err := Apply(plain, params, o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for how, m := range map[string]*onnx.Model{"plain": plain, "scaled": hooked(t, o)} {
			s := open(t, m, 1, nil)
			if how == "scaled" {
				setSkip(t, s, 0)
			}
			ref := newReference(o, wave(12, 1), wave(4, 2))
			x := wave(testSteps*15, 3)
			for i := range testSteps {
				step, err := s.Step(context.Background())
				if err != nil {
					t.Fatalf("%s, %s: %v", name, how, err)
				}
				ref.train(x[15*i : 15*i+15])
				compare(t, name, s, ref, i)
				if ref.step%int(max(o.Accumulate, 1)) != 0 {
					continue
				}
				out, ok := step.Output(NormOutput)
				if got, scalar := out.Scalar(); !ok || !scalar || math.Abs(got-ref.norm) > 1e-4*ref.norm {
					t.Errorf("%s, %s: step %d returns the norm %v, not %v", name, how, i+1, got, ref.norm)
				}
			}
		}
	}
}
