package precision

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

// unit is the half type's rounding unit.
var unit = map[onnx.DType]float64{onnx.Float16: 0x1p-11, onnx.BFloat16: 0x1p-8}

// nudges is how often a sample is nudged. The kink of one ReLU is crossed or
// not by chance, and a processor's order of summation has a say in it; a kink
// that a cast crosses is one that some of so many nudges cross too.
const nudges = 16

// TestSamples converts every sample both ways, emulated: the gradients stay
// near those of float32, and are the same bits at every optimization level.
func TestSamples(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(samplesDir, "*.onnx"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, path := range paths {
		t.Run(trimmed(path), func(t *testing.T) {
			s := load(t, trimmed(path))
			want := run(t, clone(t, s.model), s.feeds, 0, 0)
			for _, to := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
				var nudged []map[string][]float64
				for seed := range nudges {
					nudged = append(nudged, run(t, clone(t, s.model), s.nudged(t, unit[to], uint64(seed)), 0, 0))
				}
				for _, stash := range []bool{false, true} {
					s.check(t, want, nudged, Options{To: to, Emulate: !stash, StashOnly: stash, Early: stash, Provider: kernels.CPU})
				}
			}
		})
	}
}

// nudged are the feeds with every float off by up to u of itself: what that
// does to gradients in float32 is what the model makes of a rounding. Where a
// batch norm over few elements or the kink of a ReLU follows, it is much.
func (s *sample) nudged(t testing.TB, u float64, seed uint64) map[string]runtime.Tensor {
	feeds := map[string]runtime.Tensor{}
	r := rand.New(rand.NewPCG(seed, 2))
	for name, f := range s.feeds {
		feeds[name] = f
		if f.Type != onnx.Float32 {
			continue
		}
		x, err := f.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		y := make([]float32, len(x))
		for i := range x {
			y[i] = float32(x[i] * (1 + (2*r.Float64()-1)*u))
		}
		feeds[name] = runtime.FromFloat32s(y, f.Shape...)
	}
	return feeds
}

func (s *sample) check(t *testing.T, want map[string][]float64, nudged []map[string][]float64, o Options) {
	m := clone(t, s.model)
	r, err := Apply(m, o)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if r.Scaled != (o.To == onnx.Float16 && !o.StashOnly) {
		t.Errorf("%s: scaled %v: %v", o.To, r.Scaled, r.Skipped)
	}
	var first map[string][]float64
	for _, level := range []int{0, 1} {
		got := run(t, m, s.feeds, level, 1024)
		if first == nil {
			first = got
		}
		for name := range got {
			if !slices.Equal(got[name], first[name]) {
				t.Errorf("%s stash %v: %s differs at level %d", o.To, o.StashOnly, name, level)
			}
		}
	}
	if d := math.Abs(first[s.loss][0]/want[s.loss][0] - 1); d > 8*unit[o.To] {
		t.Errorf("%s stash %v: loss %g, want %g", o.To, o.StashOnly, first[s.loss][0], want[s.loss][0])
	}
	largest := 0.0
	for _, g := range s.grads {
		largest = max(largest, rms(want[g]))
	}
	worst, natural := 0.0, 0.0
	for _, g := range s.grads {
		if rms(want[g]) < 1e-4*largest {
			continue
		}
		worst = max(worst, distance(first[g], want[g]))
		for _, n := range nudged {
			natural = max(natural, distance(n[g], want[g]))
		}
	}
	t.Logf("%s stash %v: half %d of %d, stashed %d, casts %d, emulated %d, constants %d; worst gradient %.3gu, a nudge %.3gu", o.To, o.StashOnly, r.Applied, r.Requested, r.Stashed, r.Casts, r.Emulated, len(r.Constants), worst/unit[o.To], natural/unit[o.To])
	if worst > 4*unit[o.To]+4*natural {
		t.Errorf("%s stash %v: a gradient is off by %.3g", o.To, o.StashOnly, worst)
	}
}

func rms(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	return math.Sqrt(s / float64(max(len(x), 1)))
}

// TestCUDAKernels converts every sample for CUDA: no node is left without a
// kernel that had one in float32.
func TestCUDAKernels(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(samplesDir, "*.onnx"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, path := range paths {
		s := load(t, trimmed(path))
		had := map[string]bool{}
		for _, missing := range kernels.Check(s.model, kernels.CUDA) {
			had[missing.Node] = true
		}
		for _, to := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
			m := clone(t, s.model)
			r, err := Apply(m, Options{To: to, Provider: kernels.CUDA})
			if err != nil {
				t.Fatal(err)
			}
			if to == onnx.Float16 && r.Applied < r.Requested/2 { // bfloat16 convolutions have none
				t.Errorf("%s: %s: %s", trimmed(path), to, r)
			}
			norms, inHalf := 0, 0
			for _, n := range m.Graph.Nodes {
				if n.Is("LayerNormalization") {
					norms++
					if n.In(0).Type.DType == to {
						inHalf++ // its statistics, float32, are no reason against it
					}
				}
			}
			if norms > 0 && inHalf == 0 {
				t.Errorf("%s: none of %d norms runs in %s", trimmed(path), norms, to)
			}
			for _, missing := range kernels.Check(m, kernels.CUDA) {
				if !had[missing.Node] {
					t.Errorf("%s: %s: %s", trimmed(path), to, missing)
				}
			}
		}
	}
}
