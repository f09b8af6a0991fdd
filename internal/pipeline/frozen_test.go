package pipeline

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// adapters is a residual stack of MLPs on frozen weights, each product with a
// low-rank branch beside it, as LoRA adapters have it:
//
//	y = x W + (x A) B
func adapters(layers, width, rank, rows int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "model ir=10 opset=20\ngraph adapters {\n  in x float32[%d,%d]\n", rows, width)
	made := 0
	normal := func(name string, from, to int) {
		made++
		values := make([]string, from*to)
		for i := range values {
			values[i] = fmt.Sprintf("%.3f", float64((i*7919+made*31)%201-100)/float64(50*width))
		}
		fmt.Fprintf(&b, "  init %s float32[%d,%d] = [%s]\n", name, from, to, strings.Join(values, ", "))
	}
	last := "x"
	for l := range layers {
		for i, dims := range [][2]int{{width, 4 * width}, {4 * width, width}} {
			p := fmt.Sprintf("l%d.%d.", l, i)
			normal(p+"w", dims[0], dims[1])
			normal(p+"lora_a", dims[0], rank)
			normal(p+"lora_b", rank, dims[1])
			in := last
			if i == 1 {
				fmt.Fprintf(&b, "  l%d.h = Tanh(l%d.0.y)\n", l, l)
				in = fmt.Sprintf("l%d.h", l)
			}
			fmt.Fprintf(&b, "  %[1]sbase = MatMul(%[2]s, %[1]sw)\n  %[1]sdown = MatMul(%[2]s, %[1]slora_a)\n"+
				"  %[1]sup = MatMul(%[1]sdown, %[1]slora_b)\n  %[1]sy = Add(%[1]sbase, %[1]sup)\n", p, in)
		}
		fmt.Fprintf(&b, "  l%[1]d.out = Add(%[2]s, l%[1]d.1.y)\n", l, last)
		last = fmt.Sprintf("l%d.out", l)
	}
	fmt.Fprintf(&b, "  squares = Mul(%[1]s, %[1]s)\n  loss = ReduceMean(squares) {keepdims=0}\n  out loss float32[]\n}\n", last)
	return b.String()
}

// trained is the AdamW step of a forward graph; params are globs as of grad.
func trained(t *testing.T, text string, params ...string) *onnx.Model {
	t.Helper()
	return trainedBy(t, optim.AdamW, text, params...)
}

// trainedBy is the step of an optimizer.
func trainedBy(t *testing.T, kind optim.Kind, text string, params ...string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	res, err := grad.Differentiate(m, grad.Options{Params: params})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range res.Params {
		names = append(names, p.Name)
	}
	withOptimizer(t, m, names, optim.Defaults(kind))
	m.SetMetadata(VersionKey, "test")
	return m
}

// TestFrozenWeightsAreHeldOnce writes the AdamW step of adapters under each
// strategy and runs it: every figure is the one predicted, the session holds no
// copy of a frozen weight, and all told the step takes at least 40 % less than
// one that trains everything (optimal, where the state outweighs what is left of
// the activations, a third less). With PackAll, ONNX Runtime
// keeps a copy for the forward and one for the backward.
func TestFrozenWeightsAreHeldOnce(t *testing.T) {
	e := engine(t)
	text := adapters(3, 48, 4, 64)
	const weights = 3 * 2 * 48 * 4 * 48 * 4 // bytes
	for strategy, share := range map[string]int64{"none": 60, "full": 60, "optimal": 65} {
		t.Run(strategy, func(t *testing.T) {
			full := runAsPredicted(t, e, trained(t, text), Options{}, strategy)
			few := runAsPredicted(t, e, trained(t, text, "*lora_*"), Options{}, strategy)
			packed := runAsPredicted(t, e, trained(t, text, "*lora_*"), Options{Prepack: PackAll}, strategy)
			t.Logf("everything %d, adapters %d, prepacked %d: %+v", full.TotalPeakBytes, few.TotalPeakBytes, packed.TotalPeakBytes, few)
			if few.ParameterBytes < weights || few.SessionBytes > weights/100 {
				t.Errorf("parameters %d, session %d: want the weights' %d once", few.ParameterBytes, few.SessionBytes, weights)
			}
			if packed.SessionBytes < weights*3/2 {
				t.Errorf("prepacked: session %d, want about twice %d", packed.SessionBytes, weights)
			}
			if 100*few.TotalPeakBytes > share*full.TotalPeakBytes {
				t.Errorf("adapters take %d bytes, training everything %d", few.TotalPeakBytes, full.TotalPeakBytes)
			}
		})
	}
}

// TestWeightsBehindBarriersAreWeights: a weight that is read through a view which
// waits for an input is no value of the forward pass, though all layers read it,
// and what it is multiplied by is one: layers without adapters are found.
func TestWeightsBehindBarriersAreWeights(t *testing.T) {
	one := regexp.MustCompile(`, l\d\.(\d)\.w\)`).ReplaceAllString(adapters(4, 48, 4, 64), ", l0.$1.w)")
	var names [2][]string
	for i, o := range []Options{{}, {Prepack: PackAll}} {
		m := trained(t, one, "l[23].*lora_*")
		control.Lift(m.Graph)
		if err := Order(m, o); err != nil {
			t.Fatal(err)
		}
		a, err := analysis.Analyze(m, analysis.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for l := range a.Problem.LayerCount() {
			names[i] = append(names[i], a.Problem.Values[a.Problem.LayerEnd(l)].Name)
		}
	}
	if len(names[1]) < 3 || !slices.Equal(names[0], names[1]) {
		t.Errorf("layers end in %v, without barriers in %v", names[0], names[1])
	}
}

// TestFewRowsArePacked: below sixteen rows packing a weight in every step would
// take longer than the product, so its copies stay, unless told otherwise, and
// the report says so.
func TestFewRowsArePacked(t *testing.T) {
	e := engine(t)
	const weights = 3 * 2 * 48 * 4 * 48 * 4 // bytes
	for _, c := range []struct {
		rows    int
		prepack Prepacking
		packed  bool
	}{{1, "", false}, {2, PackFew, true}, {15, "", true}, {15, PackNo, false}, {16, "", false}, {16, PackAll, true}} {
		m := runAsPredicted(t, e, trained(t, adapters(3, 48, 4, c.rows), "*lora_*"), Options{Prepack: c.prepack}, "full")
		if packed := m.SessionBytes > weights; packed != c.packed {
			t.Errorf("%d rows, prepack %q: the session holds %d bytes", c.rows, c.prepack, m.SessionBytes)
		}
	}
}

// TestFrozenFilters: the filters of a transposed convolution are held once too.
func TestFrozenFilters(t *testing.T) {
	e := engine(t)
	values := strings.Repeat("0.5, -0.25, ", 9*16*32/2)
	m := trained(t, fmt.Sprintf(`model ir=10 opset=20
graph filters {
  in x float32[2,16,9,9]
  init scale float32[16,9,9] = [%s]
  init w float32[16,32,3,3] = [%s]
  scaled = Mul(x, scale)
  y = ConvTranspose(scaled, w) {kernel_shape=[3, 3]}
  squares = Mul(y, y)
  loss = ReduceMean(squares) {keepdims=0}
  out loss float32[]
}
`, strings.TrimSuffix(values[:12*16*81/2], ", "), strings.TrimSuffix(values, ", ")), "scale")
	got := runAsPredicted(t, e, m, Options{}, "none")
	if packed := runAsPredicted(t, e, m, Options{Prepack: PackAll}, "none"); got.SessionBytes > 1024 || packed.SessionBytes < 4*16*32*9 {
		t.Errorf("the session holds %d bytes, prepacked %d", got.SessionBytes, packed.SessionBytes)
	}
}

// runAsPredicted plans, writes and runs a step at level 1, and fails where a figure is
// not the one predicted.
func runAsPredicted(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, strategy string) runtime.Memory {
	t.Helper()
	got, _ := runAtLevel(t, e, m, o, strategy, 1)
	return got
}

// runAtLevel is runAsPredicted at a level of ONNX Runtime, and returns the file too.
func runAtLevel(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, strategy string, level int) (runtime.Memory, *File) {
	t.Helper()
	o.Provider, o.OptLevel, o.Threads = ort.CPU, level, 2
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.PlanWithin(strategy, Budget{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.Open(r.Model, runtime.Options{Level: level, Threads: 2, Provider: ort.CPU})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.MeasureConstants(); err != nil {
		t.Fatal(err)
	}
	got, want := s.Memory(), r.Prediction
	if !want.Exact() || got.ParameterBytes != want.Parameters || got.StateBytes != want.State ||
		got.SessionBytes != want.Session.Bytes() || got.LivePeakBytes != want.LivePeak || got.TotalPeakBytes != want.TotalPeak {
		t.Errorf("level %d: measured %+v, predicted parameters %d, state %d, session %d, live peak %d, total %d", level, got,
			want.Parameters, want.State, want.Session.Bytes(), want.LivePeak, want.TotalPeak)
	}
	return got, r
}
