package optim

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/runtime"
)

// hooked is toyModel with gradients eight times too large, which Unscale
// corrects, and an input skip.
func hooked(t *testing.T, o Options) *onnx.Model {
	t.Helper()
	m, params := toyModel(t)
	b := build.New(m.Graph, nil, "large")
	for i := range params {
		g := b.Op("Mul", build.In(params[i].Grad, b.Scalar(onnx.Float32, 8)))
		g.Type = params[i].Grad.Type
		params[i].Grad = g
	}
	b.Flush()
	if _, err := Apply(m, params, o); err != nil {
		t.Fatal(err)
	}
	eighth := m.Graph.AddConstant("eighth", onnx.FloatTensor(onnx.Float32, []float64{0.125}))
	if err := Unscale(m, eighth, nil); err != nil {
		t.Fatal(err)
	}
	skip := m.Graph.AddInput("skip", onnx.TensorOf(onnx.Bool, onnx.StaticShape()))
	if err := Skip(m, Skips{All: skip}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestUnscale follows the reference with gradients that arrive scaled.
func TestUnscale(t *testing.T) {
	for name, o := range cases {
		s := open(t, hooked(t, o), 1, nil)
		setSkip(t, s, 0)
		ref := newReference(o, wave(12, 1), wave(4, 2))
		x := wave(testSteps*15, 3)
		for i := range testSteps {
			if _, err := s.Step(context.Background()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			ref.train(x[15*i : 15*i+15])
			compare(t, name, s, ref, i)
		}
	}
}

func setSkip(t *testing.T, s *runtime.Session, v byte) {
	t.Helper()
	if err := s.SetInput("skip", runtime.Tensor{Type: onnx.Bool, Data: []byte{v}}); err != nil {
		t.Fatal(err)
	}
}

// TestSkip: a step whose gradients are not finite changes no bit, the first or a later one.
func TestSkip(t *testing.T) {
	for name, o := range cases {
		for skipped := range 2 {
			bad := wave(testSteps*15, 3)
			bad[15*skipped+3], bad[15*skipped+7] = math.NaN(), math.Inf(1)
			s := openOn(t, hooked(t, o), 1, nil, bad)
			setSkip(t, s, 0)
			if skipped > 0 {
				if _, err := s.Step(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			before := map[string][]byte{}
			for _, in := range s.Updated() {
				v, _, _ := s.Input(in)
				before[in] = bytes.Clone(v.Data)
			}
			setSkip(t, s, 1)
			if _, err := s.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
			for in, want := range before {
				if v, _, _ := s.Input(in); !bytes.Equal(v.Data, want) {
					t.Errorf("%s: %s changed when step %d was skipped", name, in, skipped+1)
				}
			}
		}
	}
}

// TestPreviousNorm: the first step is not clipped, a step is by the norm of the
// one before, and a norm that is not finite is not kept.
func TestPreviousNorm(t *testing.T) {
	m, params := toyModel(t)
	if _, err := Apply(m, params, with(SGD, func(o *Options) { o.ClipNorm, o.ClipBy = 0.5, ClipPrevious })); err != nil {
		t.Fatal(err)
	}
	x := wave(testSteps*15, 3)
	x[18], x[33] = 1e30, math.NaN() // in the second step, whose squares leave float32, and the third
	s := openOn(t, m, 1, nil, x)
	norm := func() float64 {
		v, _, err := s.Input("clip_norm")
		if err != nil {
			t.Fatal(err)
		}
		x, err := v.Float64s()
		if err != nil || len(x) != 1 {
			t.Fatal(x, err)
		}
		return x[0]
	}
	if norm() != 0 {
		t.Errorf("the norm begins as %v", norm())
	}
	step := func() {
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	step()
	ref := newReference(Defaults(SGD), wave(12, 1), wave(4, 2)) // without clipping
	ref.train(x[:15])
	compare(t, "first step", s, ref, 0)
	want := norm()
	if math.Abs(want-ref.norm) > 1e-4*ref.norm || want < 1 {
		t.Errorf("the norm is %v, not %v, or is not clipped", want, ref.norm)
	}
	for _, bad := range []float64{x[18], x[33]} {
		if step(); norm() != want {
			t.Errorf("after a step with %v the norm is %v, not %v", bad, norm(), want)
		}
	}
}

// TestSkipIsTold: an update that lost what it says of its products is refused, as a
// skipped step would change something.
func TestSkipIsTold(t *testing.T) {
	for name, o := range cases {
		m, params := toyModel(t)
		if _, err := Apply(m, params, o); err != nil {
			t.Fatal(err)
		}
		for _, n := range m.Graph.Nodes {
			if n.Origin().Of == "b" && n.Metadata(neutralKey) != "" {
				n.SetMetadata(neutralKey, "")
			}
		}
		skip := m.Graph.AddInput("skip", onnx.TensorOf(onnx.Bool, onnx.StaticShape()))
		if err := Skip(m, Skips{All: skip}, nil); err == nil || !strings.Contains(err.Error(), `update of "b" does not say`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
