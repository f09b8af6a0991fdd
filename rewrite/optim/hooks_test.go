package optim

import (
	"bytes"
	"context"
	"math"
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
	b := build.New(m.Graph, nil, "large/")
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
	if err := Skip(m, skip, nil); err != nil {
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
			ref.train(x[15*i:15*i+15], 0.05)
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

// TestSkip: a step whose gradients are not finite changes no bit.
func TestSkip(t *testing.T) {
	for name, o := range cases {
		s := open(t, hooked(t, o), 1, nil)
		setSkip(t, s, 0)
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		before := map[string][]byte{}
		for _, in := range s.Updated() {
			v, _, _ := s.Input(in)
			before[in] = v.Data
		}
		setSkip(t, s, 1)
		bad := wave(15, 1)
		bad[3], bad[7] = math.NaN(), math.Inf(1)
		if err := s.SetInput("x", tensor(bad, 5, 3)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		for in, want := range before {
			if v, _, _ := s.Input(in); !bytes.Equal(v.Data, want) {
				t.Errorf("%s: %s changed in a skipped step", name, in)
			}
		}
	}
}
