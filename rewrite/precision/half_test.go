package precision

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

// exportedInHalf is a model exported in half precision, with an embedding of which no step reads
// the last row.
const exportedInHalf = `model ir=10 opset=20
graph g {
  in ids int64[2,3]
  in t int64[6]
  init emb float16[5,4] = [0.5,-0.5,0.25,1,1,0.5,-1,0.25,-0.25,0.5,1,0.5,0.5,0.25,-0.5,1,1,1,1,1]
  init w float16[4,3] = [0.5,-0.5,0.25,1,0.5,-1,0.25,-0.25,0.5,1,0.5,-1]
  init shape int64[2] = [-1,4]
  e = Gather(emb, ids)
  x = Reshape(e, shape)
  z = MatMul(x, w)
`

// The loss of such a model, in float32 as usual and in half.
const (
	wideLoss = "  f = Cast(z) {to=1}\n  loss = SoftmaxCrossEntropyLoss(f, t)\n  out loss float32[]\n}\n"
	halfLoss = "  loss = SoftmaxCrossEntropyLoss(z, t)\n  out loss float16[]\n}\n"
)

// derivedHalf is the training graph, with AdamW where the parameters are float32.
func derivedHalf(t *testing.T, loss string, masters bool) (*onnx.Model, map[string]runtime.Tensor) {
	t.Helper()
	m, err := onnx.Parse(exportedInHalf + loss)
	if err != nil {
		t.Fatal(err)
	}
	res, err := grad.Differentiate(m, grad.Options{Masters: masters})
	if err != nil {
		t.Fatal(err)
	}
	feeds := map[string]runtime.Tensor{
		"ids": runtime.FromInt64s([]int64{0, 1, 2, 3, 1, 0}, 2, 3), "t": runtime.FromInt64s([]int64{0, 1, 2, 2, 1, 0}, 6),
	}
	var params []optim.Param
	for _, p := range res.Params {
		data, err := p.Data.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		feeds[p.Name] = runtime.Tensor{Type: p.Data.DType(), Shape: p.Data.Dims(), Data: data}
		params = append(params, optim.Param{Value: p.Input, Grad: p.Grad})
	}
	if masters {
		o := optim.Defaults(optim.AdamW)
		o.Types = res.Types
		if _, err := optim.Apply(m, params, o); err != nil {
			t.Fatal(err)
		}
	}
	return m, feeds
}

// TestHalfParametersAreScaled: the loss of a model exported in half is scaled, also one
// that is computed in half, and an update of AdamW is that without scaling.
func TestHalfParametersAreScaled(t *testing.T) {
	for name, loss := range map[string]string{"loss in float32": wideLoss, "loss in half": halfLoss} {
		m, feeds := derivedHalf(t, loss, true)
		want := run(t, clone(t, m), feeds, 1, 0)
		report, err := Apply(m, Options{To: onnx.Float16})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !report.Scaled {
			t.Fatalf("%s: not scaled: %v", name, report.Skipped)
		}
		got := run(t, m, feeds, 1, 1024)
		if got[FoundOutput][0] != 0 {
			t.Fatalf("%s: overflow", name)
		}
		for _, o := range []string{"emb.new", "w.new", "emb.m.new", "w.m.new", "emb.v.new", "w.v.new"} {
			// Weights change by the rate, whatever the gradient; moments follow its rounding.
			if d := distance(got[o], want[o]); !(d < 2e-3) {
				t.Errorf("%s: %s is %.2g apart from that without scaling", name, o, d)
			}
			for _, x := range got[o] {
				if math.IsNaN(x) {
					t.Fatalf("%s: %s has a NaN", name, o)
				}
			}
		}
	}
}

// TestOverflowOfHalfProducts: what looks for overflows reads what the updates read, also of a
// product that the file has in half, around which the CPU provider has casts of its own.
func TestOverflowOfHalfProducts(t *testing.T) {
	for name, loss := range map[string]string{"loss in float32": wideLoss, "loss in half": halfLoss} {
		m, feeds := derivedHalf(t, loss, true)
		if _, err := Apply(m, Options{To: onnx.Float16, Provider: kernels.CPU}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rows := make([]float32, 20) // so large that the gradient of w overflows first
		for i := range rows {
			rows[i] = float32(32 - 3*i)
		}
		feeds["emb"] = runtime.FromFloat32s(rows, 5, 4)
		found := 0
		for scale := 1e3; scale < 1e6; scale *= 1.2 {
			got := run(t, m, feeds, 1, scale)
			if got[FoundOutput][0] != 0 {
				found++
				continue
			}
			for o, list := range got {
				if slices.ContainsFunc(list, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
					t.Errorf("%s: scale %.0f: %s is not finite, and nothing was found", name, scale, o)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: no scale overflows", name)
		}
	}
}

// TestHalfGradientsAreRefused: gradients that are returned in half would lose what the
// scale saved; bf16 scales none.
func TestHalfGradientsAreRefused(t *testing.T) {
	m, _ := derivedHalf(t, wideLoss, false)
	var refused *Error
	if _, err := Apply(m, Options{To: onnx.Float16}); !errors.As(err, &refused) || !strings.Contains(err.Error(), `needs float32 gradients, and that of "emb" is float16: derive the graph with an optimizer`) {
		t.Errorf("got %v", err)
	}
	m, _ = derivedHalf(t, wideLoss, false)
	if _, err := Apply(m, Options{To: onnx.BFloat16}); err != nil {
		t.Error(err)
	}
}
