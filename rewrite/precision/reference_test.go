package precision

import (
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

// halves are the models whose gradients with the same casts are in testdata.
var halves = map[string]models.Config{
	"gpt2":    {Layers: 2, Hidden: 24, Heads: 3, Vocab: 61, Positions: 8, Seq: 8, Batch: 2},
	"encoder": {Layers: 2, Hidden: 24, Heads: 3, Seq: 8, Batch: 1},
}

// reference is a zoo model with its gradients and the feeds of testdata, and
// what PyTorch says of it.
func reference(t *testing.T, name string) (*sample, map[string]runtime.Tensor) {
	t.Helper()
	row, err := models.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	built, err := row.Build(halves[name])
	if err != nil {
		t.Fatal(err)
	}
	if err := built.Describe(); err != nil {
		t.Fatal(err)
	}
	archive, err := runtime.ReadNPZ("testdata/half_" + name + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	res, err := grad.Differentiate(built.Model, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{model: built.Model, feeds: map[string]runtime.Tensor{}, loss: res.Loss.Name, res: res}
	for key, x := range archive {
		if feed, ok := strings.CutPrefix(key, "in:"); ok {
			s.feeds[feed] = x
		}
	}
	for _, p := range res.Params {
		w, ok := archive["param:"+p.Name]
		if !ok {
			t.Fatalf("no weight %s", p.Name)
		}
		s.feeds[p.Name] = w
		s.grads = append(s.grads, p.Grad.Name)
	}
	return s, archive
}

// TestEqualsPyTorch compares every gradient with that of the same model written
// in PyTorch with the same casts (scripts/half_reference.py): 99.9 % of the
// elements within four units of themselves, or of the gradient's root mean
// square where they are smaller. A gradient that is nought in float32 but for
// rounding, as a key's bias has, stays below a unit of the largest.
func TestEqualsPyTorch(t *testing.T) {
	for name := range halves {
		for _, to := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
			t.Run(name+" "+to.String(), func(t *testing.T) {
				s, archive := reference(t, name)
				m := clone(t, s.model)
				if _, err := Apply(m, Options{To: to, Emulate: true, Provider: kernels.CPU}); err != nil {
					t.Fatal(err)
				}
				m.Graph.AnnotateTypes()
				scale, err := archive["in:loss_scale"].Float64s()
				if err != nil {
					t.Fatal(err)
				}
				delete(s.feeds, ScaleInput)
				plain := run(t, clone(t, s.model), s.feeds, 1, 0)
				s.equals(t, run(t, m, s.feeds, 1, scale[0]), plain, archive, to)
			})
		}
	}
}

func (s *sample) equals(t *testing.T, got, plain map[string][]float64, archive map[string]runtime.Tensor, to onnx.DType) {
	const share, units, nought = 0.001, 4, 1e-5
	largest, exact := 0.0, 0
	for _, name := range s.grads {
		largest = max(largest, rms(plain[name]))
	}
	for _, name := range append([]string{s.loss}, s.grads...) {
		x, ok := archive[to.String()+":"+name]
		if !ok {
			t.Errorf("no %s in testdata", name)
			continue
		}
		want, err := x.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		if rms(plain[name]) < nought*largest {
			if r := rms(got[name]); r > unit[to]*largest {
				t.Errorf("%s: %g, of a gradient that is nought", name, r)
			}
			continue
		}
		least, off, worst := rms(want), 0, 0.0
		for i, b := range want {
			e := math.Abs(got[name][i]-b) / (unit[to] * max(math.Abs(b), least))
			worst = max(worst, e)
			if e > units {
				off++
			}
		}
		if worst < 0.01 {
			exact++
		} else {
			t.Logf("%s: worst %.2g units", name, worst)
		}
		if float64(off) > share*float64(len(want)) {
			t.Errorf("%s: %d of %d elements are off by more than %d units, the worst by %.3g", name, off, len(want), units, worst)
		}
	}
	t.Logf("%d of %d are the same", exact, 1+len(s.grads))
}
