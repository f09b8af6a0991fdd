package optim

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// pull is a model with the loss ½Σ(P-x)², whose gradient is P-x.
func pull(t *testing.T, o Options, dims ...int64) *onnx.Model {
	t.Helper()
	shape := onnx.StaticShape(dims...).String()
	m, err := onnx.Parse(fmt.Sprintf(`model ir=10 opset=20
graph g {
  in P float32%[1]s
  in x float32%[1]s
  off = Sub(P, x)
  square = Mul(off, off)
  sum = ReduceSum(square) {keepdims=0}
  half = Constant() {value_float=0.5}
  loss = Mul(sum, half)
  out loss float32[]
}
`, shape))
	if err != nil {
		t.Fatal(err)
	}
	m.SetMetadata(step.RolesKey, `{"loss": "loss"}`)
	if _, err := Apply(m, []Param{{m.Graph.Value("P"), m.Graph.Value("off")}}, o); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

// spread are numbers whose sizes differ by up to 1e6.
func spread(n int, phase float64) []float64 {
	out := wave(n, phase)
	for i := range out {
		out[i] = float64(float32(out[i] * math.Pow(10, -float64(i*7%13)/2)))
	}
	return out
}

func openPull(t *testing.T, m *onnx.Model, steps int) (s *runtime.Session, p, x []float64) {
	t.Helper()
	dims := dimsOf(m, "P")
	n, _ := onnx.Elements(dims)
	p, x = spread(int(n), 1), spread(steps*int(n), 3)
	s, err := ortest.Engine(t).Open(m, runtime.Options{
		Level: 1, Threads: 1, Provider: ort.CPU, LR: testRate, Feed: map[string]runtime.Tensor{"P": tensor(p, dims...)},
		Data: map[string]runtime.Tensor{"x": tensor(x, append([]int64{int64(steps)}, dims...)...)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, p, x
}

// coder is the formulas of Dettmers et al. 2022 in float64, with the codes that
// adamw8bit.go says.
type coder struct {
	o           Options
	run         int
	exact       bool // moments are not coded
	p, m, v     []float64
	step        float64
	largestQuot float64
}

func (c *coder) train(x []float64) {
	c.step++
	c1, c2 := 1-math.Pow(c.o.Beta1, c.step), 1-math.Pow(c.o.Beta2, c.step)
	for i, p := range c.p {
		g := p - x[i]
		c.m[i] = c.o.Beta1*c.m[i] + (1-c.o.Beta1)*g
		c.v[i] = c.o.Beta2*c.v[i] + (1-c.o.Beta2)*g*g
		quot := c.m[i] / (math.Sqrt(c.v[i]) + c.o.Eps*math.Sqrt(c2))
		c.largestQuot = max(c.largestQuot, math.Abs(quot))
		if bound, ok := c.o.quotientBound(); ok && !c.exact {
			quot = max(-bound, min(quot, bound))
		}
		c.p[i] = p*(1-testRate*c.o.WeightDecay) - testRate*math.Sqrt(c2)/c1*quot
	}
	if c.exact {
		return
	}
	for at := 0; at < len(c.p); at += c.run {
		code(c.m[at:at+c.run], 2, codeM)
		code(c.v[at:at+c.run], 4, codeV)
	}
}

// code rounds the power-th root of each number to a share of the largest.
func code(x []float64, power, most float64) {
	root := func(v float64) float64 { return math.Copysign(math.Pow(math.Abs(v), 1/power), v) }
	scale := 0.0
	for _, v := range x {
		scale = max(scale, math.Abs(root(v))/most)
	}
	for i, v := range x {
		r := math.RoundToEven(root(v)/max(scale, scaleFloor)) * scale
		x[i] = math.Copysign(math.Pow(math.Abs(r), power), r)
	}
}

// TestMomentsInEightBits trains 40 steps beside the formulas in float64, with codes and
// without: along runs of 256, of other lengths, and where no length divides.
func TestMomentsInEightBits(t *testing.T) {
	const steps = 40
	for _, c := range []struct {
		dims []int64
		run  int
	}{{[]int64{48, 128}, 256}, {[]int64{45, 7, 33}, 231}, {[]int64{8192}, 256}, {[]int64{2, 4099}, 0}, {[]int64{31, 32}, 0}} {
		m := pull(t, Defaults(AdamW8bit), c.dims...)
		s, p, x := openPull(t, m, steps)
		zeros := func() []float64 { return make([]float64, len(p)) }
		coded := &coder{o: Defaults(AdamW8bit), run: c.run, exact: c.run == 0, p: slices.Clone(p), m: zeros(), v: zeros()}
		exact := &coder{o: Defaults(AdamW), exact: true, p: slices.Clone(p), m: zeros(), v: zeros()}
		for i := range steps {
			if _, err := s.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
			coded.train(x[i*len(p) : (i+1)*len(p)])
			exact.train(x[i*len(p) : (i+1)*len(p)])
		}
		if bound, _ := coded.o.quotientBound(); exact.largestQuot > bound {
			t.Errorf("%v: AdamW's quotient is %v, over what is said to bound it, %v", c.dims, exact.largestQuot, bound)
		}
		got, _, err := s.Input("P")
		if err != nil {
			t.Fatal(err)
		}
		values, _ := got.Float64s()
		off := func(want []float64) float64 {
			var apart, way float64
			for i, v := range values {
				apart += (v - want[i]) * (v - want[i])
				way += (want[i] - p[i]) * (want[i] - p[i])
			}
			return math.Sqrt(apart / way)
		}
		toCoded, toExact := off(coded.p), off(exact.p)
		t.Logf("%v: %.1e of the way from the formulas with codes, %.1e from AdamW", c.dims, toCoded, toExact)
		if toCoded > 2e-3 || toExact > 2e-2 {
			t.Errorf("%v: %.1e of the way from the formulas with codes, %.1e from AdamW", c.dims, toCoded, toExact)
		}
		bytes := 0
		for _, in := range s.Updated() {
			if !s.InPlace(in) {
				t.Errorf("%v: %s is not updated in place", c.dims, in)
			}
			if v, _, _ := s.Input(in); in != "P" {
				bytes += len(v.Data)
			}
		}
		if want := len(p)*2 + len(p)/max(c.run, 1)*8; c.run > 0 && bytes != want {
			t.Errorf("%v: state of %d bytes, not %d", c.dims, bytes, want)
		}
	}
}

// TestCodesStay: a step that updates nothing leaves the bits of parameter, codes and
// scales: the first one, whose scales are 0, and later ones.
func TestCodesStay(t *testing.T) {
	o := Defaults(AdamW8bit)
	o.Accumulate = 4
	s, _, _ := openPull(t, pull(t, o, 40, 128), 12)
	before := map[string][]byte{}
	for i := range 12 {
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, in := range []string{"P", "P.m", "P.m_scale", "P.v", "P.v_scale"} {
			v, _, err := s.Input(in)
			if err != nil {
				t.Fatal(err)
			}
			if due := (i+1)%4 == 0; i > 0 && due == bytes.Equal(v.Data, before[in]) {
				t.Errorf("step %d: %s changed: %v", i+1, in, !due)
			}
			before[in] = bytes.Clone(v.Data)
		}
	}
}
