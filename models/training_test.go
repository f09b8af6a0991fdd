package models_test

// Training against torch.optim.AdamW. The losses of ten steps are compared: of
// small models with the weights of testdata, and of the zoo's gpt2-tiny and mlp
// as they are written by default, whose weights come from the seed.

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
)

// TestTrainsAsPyTorch follows ten steps of the small models.
func TestTrainsAsPyTorch(t *testing.T) {
	for name := range references {
		m, res, feeds := derived(t, name)
		train(t, name, m, res, feeds)
	}
}

// TestZooTrainsAsPyTorch follows ten steps of two models as the zoo writes them
// by default: mlp is 20 layers of 1,024 with a batch of 32. The references are
// PyTorch's with the weights that the seed makes (scripts/gpt2_reference.py and
// scripts/mlp_reference.py, --weights).
func TestZooTrainsAsPyTorch(t *testing.T) {
	if testing.Short() {
		t.Skip("trains 21 million parameters")
	}
	for _, name := range []string{"gpt2-tiny", "mlp"} {
		r, err := models.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		built, err := r.Build(r.Default)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name+".onnx")
		if err := built.Save(path); err != nil {
			t.Fatal(err)
		}
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		feeds, err := runtime.ReadNPZ("testdata/" + name + "_training.npz")
		if err != nil {
			t.Fatal(err)
		}
		train(t, name, m, differentiate(t, m, feeds), feeds)
	}
}

// train runs ten AdamW steps twice, with parameters and state written over the
// inputs and beside them: losses equal the reference's within 1e-5, and every
// bit of the two runs is the same.
func train(t *testing.T, name string, m *onnx.Model, res *grad.Result, feeds map[string]runtime.Tensor) {
	t.Helper()
	var params []optim.Param
	for _, p := range res.Params {
		params = append(params, optim.Param{Value: p.Input, Grad: p.Grad})
	}
	o := optim.Defaults(optim.AdamW)
	o.Types = res.Types
	if _, err := optim.Apply(m, params, o); err != nil {
		t.Fatal(err)
	}
	lr := 1e-3
	if given, ok := feeds["train:lr"]; ok {
		lr, _ = given.Scalar()
	}
	losses, err := feeds["train:loss"].Float64s()
	if err != nil || len(losses) != 10 {
		t.Fatalf("%s: reference losses %v, %v", name, losses, err)
	}
	over := session(t, m, runtime.Options{Level: 1, Feeds: feeds, LR: lr})
	for _, in := range over.Updated() {
		if !over.InPlace(in) {
			t.Errorf("%s: %s is not updated in place", name, in)
		}
	}
	// Without roles nothing is known to be state: it is copied back by hand, and
	// begins as zeros.
	apart := session(t, m, runtime.Options{Level: 1, Feeds: feeds, LR: lr, Roles: &runtime.Roles{Loss: "loss"}})
	for _, in := range over.Updated() {
		value, _, err := over.Input(in)
		if err == nil {
			err = apart.SetInput(in, value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range losses {
		got := stepLoss(t, over)
		if off := math.Abs(got - want); !(off <= 1e-5*want) {
			t.Errorf("%s: step %d has loss %v, PyTorch %v", name, i+1, got, want)
		}
		if other := stepApart(t, apart, over.Updated()); other != got {
			t.Errorf("%s: step %d has loss %v in place and %v out of place", name, i+1, got, other)
		}
	}
	for _, in := range over.Updated() {
		a, _, errA := over.Input(in)
		b, _, errB := apart.Input(in)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if !bytes.Equal(a.Data, b.Data) {
			t.Errorf("%s: after ten steps %s has other bits in place", name, in)
		}
	}
}

func stepLoss(t *testing.T, s *runtime.Session) float64 {
	t.Helper()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return lossOf(t, step)
}

// stepApart takes a step whose updated values lie in memory of their own, and
// copies them over the inputs.
func stepApart(t *testing.T, s *runtime.Session, updated []string) float64 {
	t.Helper()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	loss := lossOf(t, step)
	for _, in := range updated {
		out, ok := step.Output(in + ".new")
		if !ok {
			t.Fatalf("no output %s.new", in)
		}
		if s.InPlace(in) {
			t.Fatalf("%s is written in place", in)
		}
		if err := s.SetInput(in, out.Tensor); err != nil {
			t.Fatal(err)
		}
	}
	return loss
}

func lossOf(t *testing.T, step *runtime.Step) float64 {
	t.Helper()
	out, ok := step.Output("loss")
	loss, one := out.Scalar()
	if !ok || !one {
		t.Fatal("no loss that is one number")
	}
	return loss
}
