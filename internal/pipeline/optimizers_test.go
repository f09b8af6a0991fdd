package pipeline

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
)

// convolutions is a forward graph of filters, whose tensors have four axes.
func convolutions() string {
	return fmt.Sprintf(`model ir=10 opset=20
graph filters {
  in x float32[2,3,12,12]
  init w1 float32[8,3,3,3] = [%s]
  init b1 float32[8] = [%s]
  init w2 float32[6,8,3,3] = [%s]
  y = Conv(x, w1, b1) {kernel_shape=[3, 3]}
  a = Relu(y)
  z = Conv(a, w2) {kernel_shape=[3, 3]}
  squares = Mul(z, z)
  loss = ReduceMean(squares) {keepdims=0}
  out loss float32[]
}
`, someValues(8*27), someValues(8), someValues(6*72))
}

// someValues are numbers for a weight in a graph's text.
func someValues(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%v, ", float64((i*37)%19-9)/64)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

// TestOptimizersAsPredicted: by optimizers whose updates are not elementwise, a transformer, a convolutional and a
// recurrent model reach the peak that is predicted, to the byte, and recomputation
// leaves the bits of the plain step.
func TestOptimizersAsPredicted(t *testing.T) {
	e := engine(t)
	feeds, err := runtime.ReadNPZ(sample("lstm_char.ts.npz"))
	if err != nil {
		t.Fatal(err)
	}
	source := fitSource(t, "lstm_char.ts.onnx")
	for _, kind := range []optim.Kind{optim.Adafactor, optim.ApolloMini, optim.Muon} {
		made := map[string]func() (*onnx.Model, map[string]runtime.Tensor){
			"transformer": func() (*onnx.Model, map[string]runtime.Tensor) {
				return zooStep(t, "gpt2-tiny", kind, func(c *models.Config) { c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 1, 32, 2, 96, 16, 1 }), nil
			},
			"convolutions": func() (*onnx.Model, map[string]runtime.Tensor) {
				return trainedBy(t, kind, convolutions(), "*"), nil
			},
			"recurrent": func() (*onnx.Model, map[string]runtime.Tensor) {
				d, err := source.Derive(DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: optim.Defaults(kind)})
				if err != nil {
					t.Fatal(err)
				}
				return d.Model, feeds
			},
		}
		for name, make := range made {
			t.Run(fmt.Sprintf("%s of %s", kind, name), func(t *testing.T) {
				m, feeds := make()
				asPredicted(t, e, m, feeds, Options{OptLevel: 1, Threads: 2})
			})
		}
	}
}

// asPredicted runs three strategies' files.
func asPredicted(t *testing.T, e *runtime.Engine, m *onnx.Model, feeds map[string]runtime.Tensor, o Options) {
	t.Helper()
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	var plain result
	for _, strategy := range []string{"none", "full", "optimal"} {
		r, err := p.Plan(strategy, 0)
		if err != nil {
			t.Fatal(err)
		}
		roles := runtime.Roles{Loss: r.Roles().Loss, New: r.Roles().New}
		got := execute(t, e, r.Model, 1, 2, feeds, roles)
		for i, peak := range got.peaks {
			if peak != r.Peak {
				t.Errorf("%s, run %d: live peak %d, predicted %d", strategy, i+1, peak, r.Peak)
			}
		}
		if plain.outputs == nil {
			plain = got
		}
		for name, want := range plain.outputs {
			if r.Variant.Divided == (Divided{}) && string(want) != string(got.outputs[name]) {
				t.Errorf("%s: output %s has other bits than the plain graph's", strategy, name)
			}
		}
	}
}
